"""Names for regions, so that small programs and benchmarks need no other way to send handles.

May import control, memory, types and errors. A question for a name that is not there yet is asked
again until its time is over; the owner keeps no state for those who ask.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from transport.errors import DeadlineExceeded, InvalidUse
from transport.memory.remote import RemoteRegion
from transport.types import check_timeout

if TYPE_CHECKING:
    from transport.control.records import PeerRecord
    from transport.engine.core import Core

TOPIC = "lookup"
_MAX_NAME = 1024  # bytes
_PAUSES = (0.005, 0.1)  # seconds between questions: the first, and what they grow to


class Names:
    """What one engine has published, and its questions to others."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._published: dict[bytes, bytes] = {}
        core.plane.handle(TOPIC, self._answer)

    def publish(self, name: str, remote: object) -> None:
        """Replaces what had the name before."""
        key = _encoded(name)
        if not isinstance(remote, RemoteRegion):
            raise InvalidUse(f"what is published is a region or its handle, not {remote!r:.80}")
        self._published[key] = remote.to_bytes()

    def withdraw(self, name: str) -> None:
        self._published.pop(_encoded(name), None)

    def lookup(self, record: PeerRecord, name: str, timeout: float | None) -> RemoteRegion:
        """Raises DeadlineExceeded, or what became of the peer."""
        limit = check_timeout(timeout)
        limit = self._core.settings.connect_timeout if limit is None else limit
        end, pause = time.monotonic() + limit, _PAUSES[0]
        key = _encoded(name)
        while True:
            found = self._ask(record, key, max(0.001, end - time.monotonic()))
            if found:
                return RemoteRegion.from_bytes(found)
            if time.monotonic() + pause > end:
                words = (
                    f"peer {record.name} has published nothing named {name!r} within {limit:g} s"
                )
                raise DeadlineExceeded(words)
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])

    def _ask(self, record: PeerRecord, key: bytes, timeout: float) -> bytes:
        if record.incarnation == self._core.incarnation:
            return self._answer(record, key)
        with self._core:
            future = self._core.plane.request(record, TOPIC, key, timeout)
        return future.result()

    def _answer(self, record: PeerRecord, body: bytes) -> bytes:
        """On the control thread."""
        del record
        return self._published.get(body, b"")


def _encoded(name: Any) -> bytes:
    key = name.encode("utf-8", "replace") if isinstance(name, str) else b""
    if not 0 < len(key) <= _MAX_NAME or key.decode() != name:
        raise InvalidUse(f"a name is text of 1 to {_MAX_NAME} bytes, not {name!r:.80}")
    return key
