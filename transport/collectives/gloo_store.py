"""A torch Store whose keys lie in a meeting. Imports torch; may import meeting and errors."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from torch.distributed import Store  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.collectives.meeting import Meeting


class MeetingStore(Store):
    """As much of a Store as torch's backends use; its time-out is a number of seconds."""

    def __init__(self, meeting: Meeting, timeout: float) -> None:
        super().__init__()
        self._meeting = meeting
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._meeting.set(key, data, self._timeout)

    def get(self, key: str) -> bytes:
        return self._meeting.get(key, self._timeout)

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        limit = self._timeout if timeout is None else timeout.total_seconds()
        for key in keys:
            self._meeting.get(key, limit)

    def add(self, key: str, value: int) -> int:
        return self._meeting.add(key, value, self._timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._meeting.peek(key, self._timeout) is not None for key in keys)

    def delete_key(self, key: str) -> bool:
        return self._meeting.drop(key, self._timeout)

    def compare_set(
        self, key: str, expected_value: str | bytes, desired_value: str | bytes
    ) -> bytes:
        before, after = (
            x.encode() if isinstance(x, str) else x for x in (expected_value, desired_value)
        )
        return self._meeting.swap(key, before, after, self._timeout)

    @property
    def timeout(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self._timeout)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout.total_seconds()
