"""What ranks say to each other about calls, as bytes of a notification.

May import hub, memory, errors and types. All of it comes from a peer: it is bounded here, and what
it says is compared with the call itself before any byte moves (`task`).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import msgspec

from transport.collectives.hub import MAX_PAYLOAD
from transport.errors import InvalidUse, PeerError, Unavailable
from transport.memory.remote import Owner, RemoteRegion
from transport.types import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_INLINE = 704  # bytes of a tensor that travel within the message itself
_MAX_TEXT = 256  # characters
_MAX_NUMBER = 1 << 62


class What(enum.IntEnum):
    HELLO = 0  # here is my arena
    MAPPED = 1  # I look into your arena
    OFFER = 2  # here are bytes for you
    TAKEN = 3  # I have them
    TOLD = 4  # nothing but `done`
    FAILED = 5  # the call is over, and will not succeed here


class Lane(enum.IntEnum):
    """Whom a message is for: an ordered call, a RECV (of what the sender sends), a SEND."""

    ORDERED = 0
    RECV = 1
    SEND = 2


class Why(enum.IntEnum):
    """Of FAILED, in `phase`."""

    MISMATCH = 0  # ranks ask for different things
    LOST = 1  # ranks are lost: `ranks`
    ENDED = 2  # deadline, abort, or anything else


_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_NUMBER)]
_Native = Annotated[bytes, msgspec.Meta(max_length=256)]


class Message(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """`done`: ordered calls before this number have ended at the sender. `size` bytes are offered:
    `inline`, or at `at` of the sender's arena, or where `native`, `keys` and `offset` say."""

    what: What
    done: _Count
    lane: Lane = Lane.ORDERED
    number: _Count = 0
    tag: Annotated[int, msgspec.Meta(ge=-_MAX_NUMBER, le=_MAX_NUMBER)] = 0
    phase: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)] = 0
    text: Annotated[str, msgspec.Meta(max_length=_MAX_TEXT)] = ""
    size: _Count = 0
    inline: Annotated[bytes, msgspec.Meta(max_length=MAX_PAYLOAD)] | None = None
    at: _Count | None = None
    native: _Native = b""
    keys: Annotated[bytes, msgspec.Meta(max_length=MAX_PAYLOAD)] = b""
    offset: _Count = 0
    ranks: Annotated[tuple[int, ...], msgspec.Meta(max_length=64)] = ()

    @property
    def direct(self) -> bool:
        """Whether the sender keeps the memory as it is until it hears TAKEN."""
        return bool(self.native)

    def region(self, door: RemoteRegion) -> RemoteRegion:
        """The memory that is offered, at the peer with that door. Raises PeerError."""
        try:
            owner = Owner.make(door.incarnation, door.addresses, self.native, self.keys)
            return RemoteRegion(owner, self.offset, None, (self.size,))
        except InvalidUse as error:
            raise PeerError(f"the peer offers what is no memory: {error}") from None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Raises Unavailable for a handle that no message can hold."""
    data = _encoder.encode(message)
    if len(data) > MAX_PAYLOAD:
        raise Unavailable(
            "the keys of this memory do not fit into a message", "use a carrier other than onesided"
        )
    return data


def decode(data: bytes) -> Message:
    """Raises PeerError."""
    try:
        message = _decoder.decode(data)
    except UNDECODABLE as error:
        raise PeerError(f"this is no message of a collective: {error}") from None
    ways = (message.inline is not None) + (message.at is not None) + bool(message.native)
    if message.what is What.OFFER and ways != 1:
        raise PeerError("an offer is of one memory")
    if message.inline is not None and len(message.inline) != message.size:
        raise PeerError("an offer says another size than it has")
    return message


def clipped(text: str) -> str:
    """As much of it as a message holds."""
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."


def handle_of(remote: RemoteRegion) -> tuple[bytes, bytes, int]:
    """`native`, `keys` and `offset` of a message."""
    return remote._owner.native, remote._owner.keys, remote.offset


def ranks_within(ranks: Sequence[int], size: int) -> tuple[int, ...]:
    """Those that can be."""
    return tuple(rank for rank in ranks if 0 <= rank < size)
