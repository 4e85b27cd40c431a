"""Where a receiver finds the memories of a value: in the message, or by handles.

May import payload's and cut's types, tensors, memory, config, errors and types; torch and numpy
only where a memory is of theirs.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import time
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from transport.config import Settings
from transport.engine.batch import Write
from transport.errors import InvalidUse, NativeError, TransportError
from transport.mesh.payload import Memory, Ticket, room_places
from transport.types import Access, Closing

if TYPE_CHECKING:
    from transport.engine.grant import Grant
    from transport.engine.transfer import Transfer
    from transport.memory.remote import RemoteRegion
    from transport.mesh.cut import Piece
    from transport.mesh.payload import Context
    from transport.mesh.tensors import Tensors


@functools.cache
def inline_bytes() -> int:
    """Up to so many bytes of memories are copied into a message."""
    return Settings.from_env().mesh_inline


@dataclass(slots=True)
class _Large:
    """A memory that is read from here."""

    number: int
    kind: str
    low: int
    thing: Any  # a tensor or array of its bytes
    device: str


class Sending(Closing):
    """The memories of one value. What they refer to is there until it is closed."""

    def __init__(self, pieces: list[Piece], context: Context) -> None:
        self.grant: Grant | None = None
        self.room = 0  # of the receiver's: the large ones are being written to it
        self.large = 0  # how many bytes of them a room could have
        self._written: Transfer | None = None
        self._context = context
        inline = _inline(pieces)
        self._found: list[Memory | None] = [None] * len(pieces)
        self._large: list[_Large] = []
        for number, piece in enumerate(pieces):
            described = self._describe(number, piece, number in inline)
            if isinstance(described, _Large):
                self._large.append(described)
            else:
                self._found[number] = described
        if self._large and not self._fill_room():
            self._lend()

    @property
    def memories(self) -> list[Memory]:
        return [memory for memory in self._found if memory is not None]

    def landed(self) -> bool:
        """Waits until the room has all. Otherwise they are lent, as without a room."""
        assert self._written is not None
        try:
            self._written.wait()
            self._large.clear()
            return True
        except BaseException as error:
            self._give_up_room(self.room)
            if not isinstance(error, TransportError):
                raise
        self.room = 0
        self._lend()
        return False

    def close(self) -> None:
        """Takes the handles back. Idempotent."""
        if self.grant is not None:
            self.grant.close()

    def _describe(self, number: int, piece: Piece, inline: bool) -> Memory | _Large:
        if piece.stays:
            return _kept(piece, self._context.receivers)
        if self._context.keep:
            raise _not_kept(piece)
        if piece.whole:
            return _Large(number, "gpu", 0, piece.owner, str(piece.owner.device))
        if isinstance(piece.owner, PickleBuffer):
            return _buffer(number, piece.owner.raw(), inline)
        size, storage = piece.high - piece.low, piece.owner
        if inline:
            data = ctypes.string_at(storage.data_ptr() + piece.low, size) if size else b""
            return Memory("storage", piece.low, data)
        part = _part(storage, piece.low, size)
        return _Large(number, "storage", piece.low, part, str(storage.device))

    # ---------------------------------------------------------------------------------------- room
    def _fill_room(self) -> bool:
        """Begins to write them to a room, where the receiver offers one for so much, and where they
        would be copied here otherwise."""
        from transport.mesh.tensors import here

        offers = self._context.offers
        if offers is None or any(it.device != "cpu" for it in self._large):
            return False
        if not any(self._is_copied(here(), it) for it in self._large):
            return False
        *places, self.large = room_places(it.thing.nbytes for it in self._large)
        offer = offers.take(self.large)
        if offer is None:
            return False
        self.room = offer.number
        try:
            self._write(offer.remote, places)
        except BaseException as error:
            self._give_up_room(offer.number)
            if not isinstance(error, TransportError):
                raise
            self.room = 0
        return self.room != 0

    def _write(self, room: RemoteRegion, places: list[int]) -> None:
        from transport.mesh.tensors import here

        writes: list[Write] = []
        for it, place in zip(self._large, places):
            size = it.thing.nbytes
            writes.append(Write(it.thing, room.bytes(place, place + size)))
            self._found[it.number] = Memory(it.kind, it.low, size=size)
        left = None if self._context.deadline == float("inf") else self._left()
        self._written = here().engine.submit(writes, deadline=left)

    def _left(self) -> float:
        return max(self._context.deadline - time.monotonic(), 0.0)

    def _give_up_room(self, number: int) -> None:
        if self._context.offers is not None:
            self._context.offers.leave(number)

    # --------------------------------------------------------------------------------------- large
    def _lend(self) -> None:
        from transport.mesh.tensors import here

        tensors, large = here(), self._large
        _finish_streams(large)
        self._copy(tensors, [it for it in large if self._is_copied(tensors, it)])
        self.grant = tensors.lend([it.thing for it in large])
        for it, handle in zip(large, self.grant.handles):
            data = handle.to_bytes()
            self._found[it.number] = Memory(it.kind, it.low, None, data, it.device)

    def _is_copied(self, tensors: Tensors, it: _Large) -> bool:
        if self._context.copy:
            return True
        return it.device == "cpu" and tensors.access_of(it.thing) is not Access.READ

    def _copy(self, tensors: Tensors, chosen: list[_Large]) -> None:
        for it in chosen:
            if it.device != "cpu":
                it.thing = _copy_on_gpu(tensors, it.thing)
        host = [it for it in chosen if it.device == "cpu"]
        if not host:
            return
        try:
            copies = tensors.copies([it.thing for it in host])
        except NativeError:  # memory is short
            if self._context.copy:
                raise
            return
        for it, copy in zip(host, copies):
            it.thing = copy


def _inline(pieces: list[Piece]) -> frozenset[int]:
    """Those that travel in the message: the smallest ones, up to so many bytes in all."""
    limit = inline_bytes()
    small = ((_nbytes(piece), number) for number, piece in enumerate(pieces))
    sizes = sorted(it for it in small if it[0] <= limit and _is_on_host(pieces[it[1]]))
    ends = itertools.accumulate(size for size, _ in sizes)
    return frozenset(number for end, (_, number) in zip(ends, sizes) if end <= limit)


def _nbytes(piece: Piece) -> int:
    """Of what is no thing of its own."""
    owner = piece.owner
    return owner.raw().nbytes if isinstance(owner, PickleBuffer) else piece.high - piece.low


def _is_on_host(piece: Piece) -> bool:
    """Whether it is sent from there."""
    if piece.stays or piece.whole:
        return False
    return isinstance(piece.owner, PickleBuffer) or piece.owner.device.type == "cpu"


def _buffer(number: int, raw: memoryview, inline: bool) -> Memory | _Large:
    kind = "readonly" if raw.readonly else "buffer"
    if inline:
        return Memory(kind, 0, raw.tobytes())
    import numpy

    return _Large(number, kind, 0, numpy.frombuffer(raw, numpy.uint8), "cpu")


def _kept(piece: Piece, copies: int) -> Memory:
    from transport.mesh.tensors import here

    handle, ticket = here().lease(piece.owner, copies)
    where = str(getattr(piece.owner, "device", "cpu"))
    passed = Ticket(ticket.token, ticket.door.to_bytes())
    return Memory("remote", 0, None, handle.to_bytes(), where, passed)


def _not_kept(piece: Piece) -> InvalidUse:
    return InvalidUse(
        'keep="remote" is for tensors and arrays in lists, dicts and the like, not for what a '
        f"{type(piece.owner).__name__} is in"
    )


def _part(storage: Any, low: int, size: int) -> Any:
    """A tensor of these bytes of a storage."""
    torch: Any = sys.modules["torch"]
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, low, (size,), (1,))


def _finish_streams(large: list[_Large]) -> None:
    """Waits for what makes tensors on GPUs: a peer's read follows no stream of ours."""
    torch = sys.modules.get("torch")
    for device in {it.device for it in large if it.device != "cpu"}:
        if torch is not None and torch.cuda.is_available():
            torch.cuda.current_stream(device).synchronize()


def _copy_on_gpu(tensors: Tensors, thing: Any) -> Any:
    if hasattr(thing, "clone"):
        made = thing.clone()
        sys.modules["torch"].cuda.current_stream(made.device).synchronize()
        return made
    made = tensors.engine.empty(thing.shape, thing.dtype, device=str(thing.device))
    with tensors.lend([thing]) as grant:
        tensors.engine.read(grant.handles[0], made).wait()
    return made
