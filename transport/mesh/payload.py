"""Values on their way between two processes. May import cut, remote_tensor, tensors and types.

A value is pickled (protocol 5, functions and classes by value where their module is `__main__`),
but for the memories of its tensors and arrays. Small ones follow the pickle. Of large ones there
are handles: the receiver's engine reads all of them, in one transfer, into new memory; or they lie
in a room of the receiver's, one after the other, where they were written to. No engine is made, and
neither torch nor numpy imported, for a value that needs none.

Only processes that have proven themselves get here: what they send is unpickled.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from transport.errors import InvalidUse, PeerRefused
from transport.mesh.cut import cut
from transport.types import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from transport.mesh.offers import Offers
    from transport.mesh.rooms import Room

_ALIGN = 64  # of what lies in a room
_PICKLE = b"\x80"  # how pickles of protocol 2 and later begin, and no array of msgpack


@dataclass(frozen=True, slots=True)
class Context:
    """Between whom, and until when. `peer` is a name for errors, `deadline` of time.monotonic.

    `receivers` is how many processes will decode what is encoded. With `keep="remote"` tensors stay
    here and the receiver gets a RemoteTensor of each. `copy` is for values that their owner may go
    on to change before the receiver is heard of: all large tensors are copied first. Otherwise
    those are that lie in private memory, which reading from there would take longer. `places`: the
    ranks of the actors that it is for, and of all that were spawned with them. `offers`: of the
    only receiver, where there is one. `room`: what the sender says that it has written to.
    """

    peer: str = ""
    deadline: float = float("inf")
    receivers: int = 1
    keep: str = ""
    copy: bool = False
    places: tuple[Sequence[int], Sequence[int]] | None = None
    offers: Offers | None = None
    room: Room | None = None


@dataclass(slots=True)
class Payload:
    """What travels. `release` is called once when nobody needs what it refers to any more.

    `held`: whether the receiver must be heard of before that, because it pulls something. `room`:
    what has its large memories, if not 0; `large`: how many bytes of them a room could have.
    """

    data: bytes | bytearray | memoryview
    held: bool = False
    release: Callable[[], None] | None = None
    room: int = 0
    large: int = 0


class Ticket(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Of what stays where it is, until the last one who has it lets go."""

    token: bytes
    door: bytes  # the handle of the owner's region that notices go to


class Memory(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One memory that a value needs, as it travels."""

    kind: str  # "storage", "buffer", "readonly", "gpu" (GpuArray) or "remote"
    low: int = 0  # where in its storage it begins
    data: bytes | None = None  # itself, if it is small
    handle: bytes = b""  # of where it is, otherwise; if it is in no room
    device: str = "cpu"
    ticket: Ticket | None = None
    size: Annotated[int, msgspec.Meta(ge=0)] = 0  # in a room


class Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A value that needs memories."""

    body: bytes
    memories: list[Memory]


def room_places(sizes: Iterable[int]) -> list[int]:
    """Where in a room memories of these sizes begin, and the end of the last."""
    places, end = [], 0
    for size in sizes:
        begin = -(-end // _ALIGN) * _ALIGN
        places.append(begin)
        end = begin + size
    return [*places, end]


def encode(value: Any, context: Context) -> Payload:
    """Raises what pickling it raises, and InvalidUse for tensors that cannot travel."""
    if context.keep not in ("", "remote"):
        raise InvalidUse(f'keep is "remote" or not given, not {context.keep!r}')
    body, pieces, passed = cut(value, remote=context.keep == "remote", places=context.places)
    if passed:
        from transport.mesh.tensors import here

        here().pass_on(passed, context.receivers)
    if not pieces and not passed:
        return Payload(body)
    from transport.mesh.sending import Sending

    sending = Sending(pieces, context)
    data = msgspec.msgpack.encode(Wire(body, sending.memories))
    if sending.room and not sending.landed():
        data = msgspec.msgpack.encode(Wire(body, sending.memories))
    held = sending.grant is not None or sending.room != 0
    return Payload(data, held, sending.close, sending.room, sending.large)


def decode(payload: Payload, context: Context) -> Any:
    """The value; blocks while something is pulled, up to the context's deadline.

    Raises what the engine's reads raise (PeerLost, StaleRegion, DeadlineExceeded), PeerRefused for
    what was never encoded, and what unpickling raises.
    """
    if payload.data[:1] == _PICKLE:
        return pickle.loads(payload.data)
    try:
        wire = msgspec.msgpack.decode(payload.data, type=Wire)
    except UNDECODABLE as error:
        raise PeerRefused(f"what {context.peer or 'the peer'} sent is no value: {error}") from None
    from transport.mesh.receiving import receive

    return receive(wire.body, wire.memories, context)
