"""Memory of a rank that its peers on this host look into: its sheet of a board, and room for what
is small, which is copied there, once.

May import board, engine, memory and errors. A place is used again when every peer has ended the
call that it was taken for, so that nobody needs to be told that he may go on.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from transport.collectives.onesided.board import sheet_bytes
from transport.errors import PeerError, TransportError

if TYPE_CHECKING:
    from transport.engine.engine import Engine
    from transport.memory.remote import RemoteRegion

_ALIGNED = 64  # bytes


class Ring:
    """Places in `size` bytes, taken in order and given back in order. Pure."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._head = 0
        self._taken: deque[tuple[int, int]] = deque()  # for which number, where it begins

    def take(self, number: int, nbytes: int) -> int | None:
        """Where there is room for so many bytes; None where there is none now."""
        need = -(-nbytes // _ALIGNED) * _ALIGNED
        start = self._room(need)
        if start is not None:
            self._head = start + need
            self._taken.append((number, start))
        return start

    def _room(self, need: int) -> int | None:
        """The head never meets the tail while something is taken."""
        if not self._taken:
            return 0 if need <= self._size else None
        head, tail = self._head, self._taken[0][1]
        if head < tail:
            return head if head + need < tail else None
        if head + need <= self._size:
            return head
        return 0 if need < tail else None

    def give_back(self, before: int) -> None:
        """All that was taken for smaller numbers."""
        while self._taken and self._taken[0][0] < before:
            self._taken.popleft()


class Arena:
    """This rank's own."""

    def __init__(self, engine: Engine, size: int, ranks: int) -> None:
        self._sheet_bytes = sheet_bytes(ranks)
        self._memory: Any = engine.empty(self._sheet_bytes + size, torch.uint8, access="read")
        self._region = engine.register(self._memory, access="read")
        self.ring = Ring(size)

    @property
    def sheet(self) -> int:
        """The address of the sheet."""
        return int(self._memory.data_ptr())

    def take(self, number: int, nbytes: int) -> tuple[int, Any] | None:
        """Where peers find so many bytes, and the bytes; None where there is no room now."""
        found = self.ring.take(number, nbytes)
        if found is None:
            return None
        at = self._sheet_bytes + found
        return at, self._memory[at : at + nbytes]

    @property
    def remote(self) -> RemoteRegion:
        return self._region.remote()

    def close(self) -> None:
        """Its memory goes back to the pool, whoever holds this. Nobody takes from it any more."""
        self._region.close(0.0)
        self._memory = None


class Window:
    """A peer's arena, mapped here."""

    def __init__(self, engine: Engine, remote: RemoteRegion, timeout: float) -> None:
        """Raises what Engine.map raises."""
        self._mapping = engine.map(remote, timeout=timeout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it cannot be written to, nor is it
            self._memory: Any = torch.from_numpy(self._mapping.numpy())

    def sheet(self, ranks: int) -> int:
        """The address of the peer's sheet. Raises PeerError where there is no room for one."""
        return int(self.bytes(0, sheet_bytes(ranks)).data_ptr())

    def bytes(self, at: int, size: int) -> Any:
        """A tensor of those very bytes. Raises PeerError for what is outside."""
        if at + size > self._memory.numel():
            raise PeerError("the peer offers bytes outside its arena")
        return self._memory[at : at + size]

    def close(self) -> None:
        """No byte of it is looked at any more: what is mapped goes, whoever holds this."""
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._mapping.close()


def window(engine: Engine, remote: RemoteRegion, timeout: float) -> Window | None:
    """None where the memory cannot be mapped: a peer on another host."""
    try:
        return Window(engine, remote, timeout)
    except TransportError:
        return None
