"""What the two ends of a link say to each other, and its bounds. Imports errors and types only.

A frame is a head, a message and a body: the lengths of the two (32 and 64 bits, little-endian),
the message as msgpack, and bytes that this file does not look into (an encoded value; see
payload.py). So a large value is neither copied into a message nor parsed.
"""

from __future__ import annotations

import struct
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from transport.errors import InvalidUse, PeerRefused
from transport.types import UNDECODABLE

HEAD = struct.Struct("<IQ")
MAX_MESSAGE = 1 << 16
MAX_BODY = 1 << 30  # of plain values; tensors do not travel here
MAX_DIMENSIONS = 16

_Number: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Rank: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
_Text: TypeAlias = Annotated[str, Meta(max_length=4096)]
_Keep: TypeAlias = Annotated[str, Meta(max_length=16)]
_Id: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Sizes: TypeAlias = Annotated[
    tuple[tuple[_Name, Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]], ...],
    Meta(max_length=MAX_DIMENSIONS),
]


class Welcome(Struct, frozen=True, array_like=True, tag="welcome"):
    """Owner, first: which rank of which mesh the process is."""

    mesh: _Id
    name: _Name
    rank: _Rank
    sizes: _Sizes


class Ready(Struct, frozen=True, array_like=True, tag="ready"):
    """Process, first: it serves. `door` is where other processes reach it ("" for nowhere)."""

    pid: _Number
    door: _Text


class Spawn(Struct, frozen=True, array_like=True, tag="spawn"):
    """Make an actor. Body: class, arguments, keywords. Answered once it is made.

    `rank` and `sizes`: where it is among those that are spawned with it.
    """

    number: _Number
    actor: _Number
    name: _Name
    rank: _Rank
    sizes: _Sizes
    held: bool = False


class Call(Struct, frozen=True, array_like=True, tag="call"):
    """Run an endpoint. Body: arguments and keywords. Not answered where `number` is 0.

    `left`: seconds until nobody waits for it any more. `keep`: where tensors of the result stay.
    `broadcast`: the answer only says that the body is not needed any more. `room`: what its large
    tensors were written to, if not 0; `large`: how many bytes of them could have been.
    """

    number: _Number
    actor: _Number
    method: _Name
    left: float
    held: bool = False
    keep: _Keep = ""
    broadcast: bool = False
    room: _Number = 0
    large: _Number = 0


class Answer(Struct, frozen=True, array_like=True, tag="answer"):
    """Body: what came out, or the error. `held`: say Taken once the body is decoded. `room` and
    `large`: as of a call."""

    number: _Number
    ok: bool
    held: bool = False
    room: _Number = 0
    large: _Number = 0


class Taken(Struct, frozen=True, array_like=True, tag="taken"):
    """What the answer with this number refers to is not needed any more."""

    number: _Number


class Room(Struct, frozen=True, array_like=True, tag="room"):
    """Large tensors of one call, or answer, may be written to memory here. Body: the handle."""

    number: _Number


class Left(Struct, frozen=True, array_like=True, tag="left"):
    """Nothing will name this room."""

    number: _Number


class Fault(Struct, frozen=True, array_like=True, tag="fault"):
    """An endpoint that nobody waits for raised; body: the error."""

    actor: _Number
    method: _Name


class Meet(Struct, frozen=True, array_like=True, tag="meet"):
    """Process: where those of this actor's group that `key` names meet; "" asks for it, and the
    owner answers with the last that was said, if any was."""

    actor: _Number
    key: Annotated[str, Meta(max_length=512)]
    at: Annotated[str, Meta(max_length=1024)]


class Forget(Struct, frozen=True, array_like=True, tag="forget"):
    """Nobody has this actor any more."""

    actor: _Number


class Moved(Struct, frozen=True, array_like=True, tag="moved"):
    """Owner: this rank of a mesh is another process from now on, to be reached there."""

    mesh: _Id
    rank: _Rank
    door: _Text


class Gone(Struct, frozen=True, array_like=True, tag="gone"):
    """Owner: the process that was reached there has ended, and how."""

    door: _Text
    host: _Name | Literal[""]
    cause: _Text


class Ping(Struct, frozen=True, array_like=True, tag="ping"):
    number: _Number


class Pong(Struct, frozen=True, array_like=True, tag="pong"):
    number: _Number


class Stop(Struct, frozen=True, array_like=True, tag="stop"):
    """End in good order: actors' `__cleanup__`, then the process."""


Message: TypeAlias = (
    Welcome
    | Ready
    | Spawn
    | Call
    | Answer
    | Taken
    | Room
    | Left
    | Fault
    | Meet
    | Forget
    | Moved
    | Gone
    | Ping
    | Pong
    | Stop
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def frame(message: Message, body_length: int = 0) -> bytes:
    """Head and message; `body_length` bytes follow it. Raises InvalidUse."""
    if body_length > MAX_BODY:
        raise InvalidUse(
            f"a value of {body_length} bytes when pickled, over {MAX_BODY}: pass it as tensors"
        )
    data = _encode(message)
    if len(data) > MAX_MESSAGE:
        raise InvalidUse(f"a message of {len(data)} bytes, over {MAX_MESSAGE}")
    return HEAD.pack(len(data), body_length) + data


def lengths(head: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Of the message and of the body. Raises PeerRefused when they are out of bounds."""
    message, body = HEAD.unpack(head)
    if not 0 < message <= MAX_MESSAGE or body > MAX_BODY:
        raise PeerRefused(f"a frame of {message} and {body} bytes is none of ours")
    return message, body


def decode(data: bytes | bytearray | memoryview) -> Message:
    """Raises PeerRefused for anything but one message."""
    try:
        return _decode(data)
    except UNDECODABLE as error:
        raise PeerRefused(f"the other end of the link broke the protocol: {error}") from None
