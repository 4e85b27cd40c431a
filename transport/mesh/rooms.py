"""Memory of this process that callers on its host may fill with the arguments of a call: rooms.

May import tensors, messages, errors. Their ends are a caller's Offers. A caller that has sent large
arguments is offered a block of their size, behind the answer; its next call can be one copy, from
where the tensors lie to where the endpoint finds them. Each room ends with a call that names it,
with a word that it will not be used, or with the link.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, Protocol

from transport.errors import InvalidUse, NativeError, PeerLost, PeerRefused
from transport.mesh import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.memory.region import Region

    class Caller(Protocol):
        """A link."""

        def send(self, message: m.Message, body: bytes = b"") -> None: ...


_AHEAD = 2  # offered to one caller at a time: its next call may come before the next room
_PATIENCE = 1.0  # seconds for a write that is under way where the right to it ends


class Room:
    """A block, and the right of one caller to write to it until it is taken or closed."""

    def __init__(self, memory: Any, region: Region) -> None:
        self.size: int = memory.nbytes
        self.claimed = False  # a call that names it waits
        self.handle = region.remote().to_bytes()
        self._memory = [memory]
        self._region = region

    def take(self) -> Any:
        """Its bytes, which the caller cannot write to any more. Raises PeerRefused."""
        try:
            memory = self._memory.pop()
        except IndexError:
            raise PeerRefused("two calls name one room, or the caller is gone") from None
        self._region.close(_PATIENCE)
        if not self._region.quiet:
            raise PeerRefused("the caller still writes to the room of a call that it has made")
        return memory

    def close(self) -> None:
        """Idempotent. While a write may still land the engine keeps the memory."""
        self._region.close(_PATIENCE)
        self._memory.clear()


def furnish(size: int) -> Room:
    """Raises NativeError where memory is short."""
    from transport.mesh.tensors import here

    engine = here().engine
    memory = engine.empty(size, "uint8", access="write")
    return Room(memory, engine.register(memory, access="write"))


def _soon(action: Callable[[], None]) -> None:
    from transport.mesh.tensors import here

    here().later(action)


class Rooms:
    """Those of all callers: `total` bytes at most, and no room over `largest`. Thread-safe.

    Rooms are made and closed by `soon`, on a thread that may wait.
    """

    def __init__(
        self,
        largest: int,
        total: int,
        make: Callable[[int], Room] = furnish,
        soon: Callable[[Callable[[], None]], None] = _soon,
    ) -> None:
        self._largest = largest
        self._total = total
        self._make = make
        self._soon = soon
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._of: dict[Caller, dict[int, Room]] = {}  # and by number
        self.nbytes = 0  # of all, and of what is being made

    def admit(self, caller: Caller) -> None:
        """It is on this host, and may be offered rooms."""
        self._of[caller] = {}

    def claim(self, caller: Caller, number: int) -> Room | None:
        """What a call of this caller names; None where there is no such room. It is not offered any
        more, and counts until `done`. May be claimed twice (link.py), but not taken."""
        room = self._of.get(caller, {}).get(number)
        if room is not None:
            room.claimed = True
        return room

    def left(self, caller: Caller, number: int) -> None:
        """The caller will not use it."""
        room = self._of.get(caller, {}).get(number)
        if room is not None and not room.claimed:
            self._end(caller, number, room)

    def done(self, caller: Caller, call: m.Call) -> None:
        """This call is over. Who sends so much may soon do so again."""
        used = self._of.get(caller, {}).get(call.room)
        if used is not None:
            self._end(caller, call.room, used)
        size = max(call.large, 0 if used is None else used.size)
        if 0 < size <= self._largest:
            ahead = 1 if used is None else _AHEAD
            self._soon(lambda: self._offer(caller, size, ahead))

    def gone(self, caller: Caller) -> None:
        """Its link has ended. Calls that wait will not find what they need, as with handles."""
        with self._lock:
            rooms = self._of.pop(caller, {})
            self.nbytes -= sum(room.size for room in rooms.values())
        for room in rooms.values():
            self._soon(room.close)

    # --------------------------------------------------------------------------------------- inside
    def _end(self, caller: Caller, number: int, room: Room) -> None:
        with self._lock:
            if self._of.get(caller, {}).pop(number, None) is not None:
                self.nbytes -= room.size
        self._soon(room.close)

    def _offer(self, caller: Caller, size: int, ahead: int) -> None:
        while self._reserve(caller, size, ahead):
            number = next(self._numbers)
            try:
                room = self._make(size)
            except (NativeError, InvalidUse):  # memory is short, or the engine is closed
                self._count(-size)
                return
            if not self._keep(caller, number, room):
                return
            try:
                caller.send(m.Room(number), room.handle)
            except PeerLost:
                self._end(caller, number, room)
                return

    def _keep(self, caller: Caller, number: int, room: Room) -> bool:
        with self._lock:
            rooms = self._of.get(caller)
            if rooms is not None:
                rooms[number] = room
                return True
        self._count(-room.size)
        room.close()
        return False

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes

    def _reserve(self, caller: Caller, size: int, ahead: int) -> bool:
        with self._lock:
            rooms = self._of.get(caller)
            if rooms is None or self.nbytes + size > self._total:
                return False
            if sum(not room.claimed for room in rooms.values()) >= ahead:
                return False
            self.nbytes += size
            return True
