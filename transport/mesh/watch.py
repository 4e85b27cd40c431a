"""Heartbeats and deadlines of members. May import member, messages and wheel."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from transport.mesh import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transport.config import Settings
    from transport.mesh.member import Member
    from transport.mesh.wheel import Wheel


class Watch:
    """Asks members whether they live, and ends what is overdue; on the wheel's time."""

    def __init__(
        self, members: Callable[[], Iterable[Member]], settings: Settings, wheel: Wheel
    ) -> None:
        self._members = members
        self._settings = settings
        self._wheel = wheel
        self._next_ping = time.monotonic()
        wheel.attend(self._duty)

    def check(self) -> None:
        """Ends what is overdue now, for a waiter whose deadline has come."""
        now = time.monotonic()
        for member in self._members():
            member.check(now)

    def close(self) -> None:
        self._wheel.dismiss(self._duty)

    def _duty(self, now: float) -> float:
        if now > self._next_ping + self._settings.heartbeat_timeout / 2:
            self._excuse(now)
        if now >= self._next_ping:
            self._next_ping = now + self._settings.heartbeat
            for member in self._members():
                self._ping(member, now)
        return min([self._next_ping, *(member.check(now) for member in self._members())])

    def _excuse(self, now: float) -> None:
        """This process was stopped, or its Python was: nobody could be heard meanwhile."""
        for member in self._members():
            member.heard = max(member.heard, now)

    def _ping(self, member: Member, now: float) -> None:
        starting = member.process is not None and member.ready is None
        if member.crash is not None or starting:  # it may import for longer than that
            return
        silent = now - member.heard
        if silent > self._settings.heartbeat_timeout:
            member.end(f"is silent: no heartbeat for {silent:.1f} s")
        else:
            member.tell(m.Ping(int(now * 1000)))
