"""What has come: the memories of a value are read, all in one transfer, and the value made of them.

May import cut, payload's types, remote_tensor, tensors, memory, errors and types; torch and numpy
only where a memory is of theirs.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from transport.engine.batch import Read
from transport.errors import DeadlineExceeded, InvalidUse, PeerRefused
from transport.ffi import ffi
from transport.memory.remote import RemoteRegion
from transport.mesh.cut import Joiner, Rebuild
from transport.mesh.payload import room_places
from transport.mesh.remote_tensor import arrive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.mesh.payload import Context, Memory
    from transport.mesh.rooms import Room
    from transport.mesh.tensors import Tensors


def receive(body: bytes, memories: Sequence[Memory], context: Context) -> Any:
    """Raises what `decode` raises."""
    made, deadline = [_small(memory) for memory in memories], context.deadline
    large = [number for number, it in enumerate(made) if it is None]
    inside = [number for number in large if not memories[number].handle]
    if inside:
        _find_in_room(context.room, memories, inside, made)
    lent = [number for number in large if memories[number].handle]
    if lent:
        _read_all(memories, lent, made, deadline)
    buffers = (
        memoryview(it).toreadonly() if memory.kind == "readonly" else it
        for it, memory in zip(made, memories)
        if memory.kind in ("buffer", "readonly")
    )
    rebuild = Rebuild(made, [memory.low for memory in memories], deadline)
    return Joiner(body, buffers, rebuild).load()


def _small(memory: Memory) -> Any:
    """What is there without reading; None for what is not."""
    if memory.kind == "remote":
        return partial(_remote, memory)
    if memory.data is None:
        return None
    if memory.kind == "storage":
        return _storage(memory.data)
    return memory.data if memory.kind == "readonly" else bytearray(memory.data)


def _storage(data: bytes) -> Any:
    import torch

    made = torch.empty(len(data), dtype=torch.uint8)
    ffi.memmove(ffi.cast("char *", made.data_ptr()), data, len(data))
    return made.untyped_storage()


def _remote(memory: Memory, kind: str) -> Any:
    from transport.mesh.tensors import Ticket

    if memory.ticket is None:
        raise InvalidUse("this is no remote tensor: it has no lease")
    ticket = Ticket(memory.ticket.token, RemoteRegion.from_bytes(memory.ticket.door))
    return arrive(RemoteRegion.from_bytes(memory.handle), ticket, kind, memory.device)


def _find_in_room(
    room: Room | None, memories: Sequence[Memory], inside: Sequence[int], made: list[Any]
) -> None:
    if room is None:
        raise PeerRefused("a call's tensors lie in a room that its caller does not have")
    sizes = [memories[number].size for number in inside]
    *places, end = room_places(sizes)
    if end > room.size or not all(sizes):
        raise PeerRefused(f"tensors of {end} bytes do not lie in a room of {room.size}")
    block = room.take()
    for number, place in zip(inside, places):
        memory = memories[number]
        made[number] = _part(block, memory.kind, place, memory.size)


def _part(block: Any, kind: str, place: int, size: int) -> Any:
    if kind in ("buffer", "readonly"):
        return block[place : place + size]
    if kind != "storage":
        raise PeerRefused(f"nothing of the kind {kind!r} lies in a room")
    import torch

    part = torch.frombuffer(block, dtype=torch.uint8, count=size, offset=place)
    return part.untyped_storage()


def _read_all(
    memories: Sequence[Memory], large: Sequence[int], made: list[Any], deadline: float
) -> None:
    from transport.mesh.tensors import here

    tensors, reads = here(), []
    for number in large:
        remote = RemoteRegion.from_bytes(memories[number].handle)
        made[number] = target = _target(tensors, memories[number], remote)
        reads.append(Read(remote, target))
    left = None if deadline == float("inf") else deadline - time.monotonic()  # None: the setting
    if left is not None and left <= 0:
        raise DeadlineExceeded("the call's deadline passed before its tensors were read")
    tensors.engine.submit(reads, deadline=left).wait()
    for number in large:
        if memories[number].kind == "storage":
            made[number] = made[number].untyped_storage()


def _target(tensors: Tensors, memory: Memory, remote: RemoteRegion) -> Any:
    engine = tensors.engine
    if memory.kind == "gpu":
        return engine.empty(remote.shape, remote.dtype, device=memory.device)
    if memory.kind != "storage":
        return engine.empty(remote.nbytes, "uint8", access="read")
    import torch

    if memory.device == "cpu":
        return engine.empty(remote.nbytes, torch.uint8, access="read")
    return torch.empty(remote.nbytes, dtype=torch.uint8, device=memory.device)
