"""Bodies of requests between engines, as the rooms above speak them: msgpack, bounded, versioned.

May import errors and types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from transport.errors import InvalidUse
from transport.types import UNDECODABLE

if TYPE_CHECKING:
    from transport.errors import TransportError

T = TypeVar("T", bound=msgspec.Struct)

encode = msgspec.msgpack.encode


def decode(data: bytes, kind: type[T], protocol: int, error: type[TransportError]) -> T:
    """Reads a message of this kind; raises `error` for what is none, or of another protocol."""
    noun = kind.__name__.strip("_").lower()
    try:
        message = msgspec.msgpack.decode(data, type=kind)
    except UNDECODABLE as why:
        raise error(f"this is no {noun}: {why}") from None
    spoken = getattr(message, "protocol", protocol)
    if spoken != protocol:
        room = kind.__module__.split(".")[1]
        raise error(f"the peer speaks protocol {spoken} of {room}, this side {protocol}")
    return message


def check_name(name: Any, most: int) -> str:
    """Raises InvalidUse for what is no name of 1 to `most` bytes."""
    encoded = name.encode("utf-8", "replace") if isinstance(name, str) else b""
    if not 0 < len(encoded) <= most or encoded.decode() != name:
        raise InvalidUse(f"a name is text of 1 to {most} bytes, not {name!r:.80}")
    return encoded.decode()
