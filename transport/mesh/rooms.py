"""Memory of this process that others on its host may fill with the tensors of a value: rooms.

May import tensors, messages, config, errors. The other ends have Offers. Who has sent large
arguments, or a large result, is offered a block of that size, behind the call; the next value can
be one copy, from where its tensors lie to where they are wanted. Each room ends with a message that
names it, with a word that it will not be used, or with the link.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING, Any, Protocol

from transport.config import Settings
from transport.errors import InvalidUse, NativeError, PeerLost, PeerRefused
from transport.mesh import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.memory.region import Region

    class Sender(Protocol):
        """A link, to who sends the values."""

        def send(self, message: m.Message, body: bytes = b"") -> None: ...


_AHEAD = 2  # offered to one sender at a time: its next value may come before the next room
_PATIENCE = 1.0  # seconds for a write that is under way where the right to it ends


class Room:
    """A block, and the right of one sender to write to it until it is taken or closed."""

    def __init__(self, memory: Any, region: Region) -> None:
        self.size: int = memory.nbytes
        self.claimed = False  # a value that lies in it waits to be decoded
        self._closing = threading.Lock()
        self.handle = region.remote().to_bytes()
        self._memory = [memory]
        self._region = region

    def take(self) -> Any:
        """Its bytes, which the sender cannot write to any more. Raises PeerRefused."""
        try:
            memory = self._memory.pop()
        except IndexError:
            raise PeerRefused("two values lie in one room") from None
        self.close()
        if not self._region.quiet:
            raise PeerRefused("a value is still being written to the room that it lies in")
        return memory

    def close(self) -> None:
        """Ends the right to write. While a write may still land the engine keeps the memory."""
        with self._closing:
            self._region.close(_PATIENCE)


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
    """Those of all senders: `total` bytes at most, and no room over `largest`. Thread-safe.

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
        self._of: dict[Sender, dict[int, Room]] = {}  # and by number
        self.nbytes = 0  # of all, and of what is being made

    def admit(self, sender: Sender) -> None:
        """Who is on this host may be offered rooms."""
        self._of[sender] = {}

    def claim(self, sender: Sender, number: int) -> Room | None:
        """What a message names; None where there is no such room. It is not offered any more, and
        counts until `done`. May be claimed twice (link.py), but not taken."""
        room = self._of.get(sender, {}).get(number)
        if room is not None:
            room.claimed = True
        return room

    def left(self, sender: Sender, number: int) -> None:
        """It will not be used."""
        room = self._of.get(sender, {}).get(number)
        if room is not None and not room.claimed:
            self._end(sender, number, room)

    def done(self, sender: Sender, message: m.Call | m.Answer) -> None:
        """Nobody needs it any more. Who sends so much may soon do so again."""
        used = self._of.get(sender, {}).get(message.room)
        if used is not None:
            self._end(sender, message.room, used)
        size = max(message.large, 0 if used is None else used.size)
        if 0 < size <= self._largest:
            ahead = 1 if used is None else _AHEAD
            self._soon(lambda: self._offer(sender, size, ahead))

    def gone(self, sender: Sender) -> None:
        """The link has ended. What came before keeps its room."""
        with self._lock:
            rooms = self._of.pop(sender, {})
            self.nbytes -= sum(room.size for room in rooms.values())
        for room in rooms.values():
            self._soon(room.close)

    # --------------------------------------------------------------------------------------- inside
    def _end(self, sender: Sender, number: int, room: Room) -> None:
        with self._lock:
            if self._of.get(sender, {}).pop(number, None) is not None:
                self.nbytes -= room.size
        self._soon(room.close)

    def _offer(self, sender: Sender, size: int, ahead: int) -> None:
        while self._reserve(sender, size, ahead):
            number = next(self._numbers)
            try:
                room = self._make(size)
            except (NativeError, InvalidUse):  # memory is short, or the engine is closed
                self._count(-size)
                return
            if not self._keep(sender, number, room):
                return
            try:
                sender.send(m.Room(number), room.handle)
            except PeerLost:
                self._end(sender, number, room)
                return

    def _keep(self, sender: Sender, number: int, room: Room) -> bool:
        with self._lock:
            rooms = self._of.get(sender)
            if rooms is not None:
                rooms[number] = room
                return True
        self._count(-room.size)
        room.close()
        return False

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes

    def _reserve(self, sender: Sender, size: int, ahead: int) -> bool:
        with self._lock:
            rooms = self._of.get(sender)
            if rooms is None or self.nbytes + size > self._total:
                return False
            if sum(not room.claimed for room in rooms.values()) >= ahead:
                return False
            self.nbytes += size
            return True


_shared: tuple[int, Rooms] | None = None
_making = threading.Lock()


def shared() -> Rooms:
    """This process's, made when they are first asked for."""
    global _shared
    with _making:
        if _shared is None or _shared[0] != os.getpid():
            settings = Settings.from_env()
            _shared = os.getpid(), Rooms(settings.mesh_room, settings.mesh_rooms)
        return _shared[1]
