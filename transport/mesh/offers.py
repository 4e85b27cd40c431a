"""Rooms that the other end of a link offers to values from here. See rooms.py for that end.

May import memory, messages, config, errors.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from transport.config import Settings
from transport.errors import InvalidUse, PeerRefused
from transport.mesh import messages as m
from transport.types import Access

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.memory.remote import RemoteRegion
    from transport.mesh.link import Body

_MOST = 4  # of one link; fewer come


@functools.cache
def _idle() -> float:
    return Settings.from_env().mesh_room_idle


class Offer(NamedTuple):
    """Memory of the other end that the large tensors of one value may be written to."""

    number: int
    remote: RemoteRegion
    since: float


class Offers:
    """Of one link. `tell` sends it a message, and raises nothing. Thread-safe."""

    def __init__(self, tell: Callable[[m.Message], None], idle: float | None = None) -> None:
        self._tell = tell
        self._idle = _idle() if idle is None else idle  # seconds after which one is given back
        self._lock = threading.Lock()
        self._offers: dict[int, Offer] = {}
        self._last = 0  # the number of the newest: one may come twice (link.py)

    def came(self, number: int, handle: Body) -> float:
        """When to `check`. Raises PeerRefused for what is no room."""
        from transport.memory.remote import RemoteRegion

        try:
            remote = RemoteRegion.from_bytes(handle)
        except InvalidUse as error:
            raise PeerRefused(f"what it offers is no room: {error}") from None
        if remote.access is Access.READ or not remote.contiguous:
            raise PeerRefused("what it offers is no room: nobody can write to it")
        offer = Offer(number, remote, time.monotonic())
        with self._lock:
            known, full = number <= self._last, len(self._offers) >= _MOST
            if not known and not full:
                self._offers[number] = offer
                self._last = number
        if full and not known:
            self.leave(number)
        return offer.since + self._idle

    def take(self, size: int) -> Offer | None:
        """One for so many bytes, of which most are needed. Smaller ones are given back, so that
        larger ones may come. Each that is taken is named in a message, or left."""
        with self._lock:
            small = self._pop(lambda it: it.remote.nbytes < size)
            fits = (it for it in self._offers.values() if it.remote.nbytes < 2 * size)
            found = next(fits, None)
            if found is not None:
                self._offers.pop(found.number)
        for it in small:
            self.leave(it.number)
        return found

    def leave(self, number: int) -> None:
        """It will not be used."""
        self._tell(m.Left(number))

    def check(self, now: float) -> float:
        """Gives back what nobody has used for long; when to look again."""
        with self._lock:
            old = self._pop(lambda it: it.since + self._idle <= now)
            since = min((it.since for it in self._offers.values()), default=float("inf"))
        for it in old:
            self.leave(it.number)
        return since + self._idle

    def _pop(self, chosen: Callable[[Offer], bool]) -> list[Offer]:
        """Called with the lock."""
        found = [it for it in self._offers.values() if chosen(it)]
        for it in found:
            self._offers.pop(it.number)
        return found
