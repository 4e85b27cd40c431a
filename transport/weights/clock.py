"""One deadline for many steps. Imports types only."""

from __future__ import annotations

import time

from transport.types import check_timeout

_LEAST = 1e-3  # seconds for a step that is begun when the time is over


class Clock:
    """Counts down from `limit` seconds (time.monotonic), which None sets to `default`."""

    __slots__ = ("_end", "begun", "limit")

    def __init__(self, limit: float | None, default: float) -> None:
        checked = check_timeout(limit)
        self.limit = default if checked is None else checked
        self.begun = time.monotonic()
        self._end = self.begun + self.limit

    def left(self) -> float:
        """Seconds for the next step; never so few that it could not end."""
        return max(self._end - time.monotonic(), _LEAST)

    def at_most(self, seconds: float) -> float:
        return min(self.left(), seconds)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._end

    def pause(self, seconds: float) -> None:
        """Sleeps, but not beyond the end."""
        time.sleep(max(0.0, min(seconds, self._end - time.monotonic())))

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.begun
