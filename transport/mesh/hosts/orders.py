"""What a fleet and its agents say to each other once both are proven. Imports errors and types.

Frames as in the handshake: a 32-bit little-endian length, and msgpack of at most MAX_FRAME bytes.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from transport.control.messages import LENGTH, MAX_FRAME
from transport.errors import InvalidUse, PeerRefused
from transport.types import UNDECODABLE

_Number: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Name: TypeAlias = Annotated[str, Meta(max_length=256)]
_Text: TypeAlias = Annotated[str, Meta(max_length=4096)]
_Lines: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=50)
]


class Enlist(Struct, frozen=True, array_like=True, tag="enlist"):
    """Agent, first: which of the job's agents it is, and where it runs."""

    job: _Text
    index: Annotated[int, Meta(ge=0, le=1 << 20)]
    host: _Name
    pid: _Number


class Connect(Struct, frozen=True, array_like=True, tag="connect"):
    """Agent, on a socket of its own: this is the link of the process with that number."""

    job: _Text
    number: _Number


class Begin(Struct, frozen=True, array_like=True, tag="begin"):
    """Fleet: start a process and connect it."""

    number: _Number
    rank: _Number
    name: _Name
    environment: dict[str, str]


class Kill(Struct, frozen=True, array_like=True, tag="kill"):
    """Fleet: end it at once."""

    number: _Number


class Leave(Struct, frozen=True, array_like=True, tag="leave"):
    """Fleet: all is over, and went well."""


class Begun(Struct, frozen=True, array_like=True, tag="begun"):
    number: _Number
    pid: _Number


class Over(Struct, frozen=True, array_like=True, tag="over"):
    """Agent: it has ended, or never began (`text` says why)."""

    number: _Number
    code: int | None
    signal: int | None
    text: _Text
    logs: _Lines


class Said(Struct, frozen=True, array_like=True, tag="said"):
    """Agent: a line that a process wrote to stream 1 or 2."""

    label: _Name
    stream: Annotated[int, Meta(ge=1, le=2)]
    line: _Text


Greeting: TypeAlias = Enlist | Connect
Order: TypeAlias = Begin | Kill | Leave
News: TypeAlias = Begun | Over | Said

GREETING = msgspec.msgpack.Decoder(Greeting)
ORDER = msgspec.msgpack.Decoder(Order)
NEWS = msgspec.msgpack.Decoder(News)
_encode = msgspec.msgpack.Encoder().encode
_Kind = TypeVar("_Kind")


def frame(message: Struct) -> bytes:
    data = _encode(message)
    if len(data) > MAX_FRAME:
        raise InvalidUse(f"a message of {len(data)} bytes to an agent, over {MAX_FRAME}")
    return LENGTH.pack(len(data)) + data


def decode(body: bytes, decoder: msgspec.msgpack.Decoder[_Kind]) -> _Kind:
    """Raises PeerRefused for anything but one message of that kind."""
    try:
        return decoder.decode(body)
    except UNDECODABLE as error:
        raise PeerRefused(f"the other end broke the agents' protocol: {error}") from None
