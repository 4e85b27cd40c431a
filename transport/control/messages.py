"""What engines say to each other, and its bounds. May import errors and types; does no I/O.

Every connection begins with a preamble of 8 bytes in each direction, so that a foreign or newer
peer is recognised before anything is parsed. Then frames follow: a 32-bit little-endian length
and that many bytes of msgpack. During the handshake a frame has at most MAX_FRAME bytes; later
the messages travel on the peer's link, which frames them itself (at most MAX_CONTROL bytes).
"""

from __future__ import annotations

import struct
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from transport.errors import PeerRefused, VersionMismatch
from transport.types import UNDECODABLE

PROTOCOL_VERSION = 3
_MAGIC = b"TENSOR"
PREAMBLE = _MAGIC + struct.pack("<H", PROTOCOL_VERSION)
PREAMBLE_BYTES = len(PREAMBLE)

LENGTH = struct.Struct("<I")
MAX_FRAME = 1 << 16
MAX_CONTROL = 1 << 18  # TN_MAX_CONTROL
MAX_DESCRIPTORS = 16
NONCE_BYTES = 32
LINK_BYTES = 16
MAX_STREAMS = 16  # TN_MAX_STREAMS
MAX_NAME = 128  # characters
MAX_ADDRESSES = 16
MAX_REASONS = 8
MAX_WORDS = 512  # characters of a text that are kept

_Incarnation: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Nonce: TypeAlias = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Proof: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME)]
_Text: TypeAlias = Annotated[str, Meta(max_length=1024)]
_Key: TypeAlias = Annotated[str, Meta(min_length=1, max_length=32)]
_Addresses: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(max_length=300)], ...], Meta(max_length=MAX_ADDRESSES)
]
_Count: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 16)]
_Pid: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 31)]
_Link: TypeAlias = Annotated[bytes, Meta(min_length=LINK_BYTES, max_length=LINK_BYTES)]
_Stream: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 16)]
_Id: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Identity(Struct, frozen=True, array_like=True):
    """Who speaks: one life of one engine."""

    incarnation: _Incarnation
    name: _Name
    pid: _Pid
    notify_depth: _Count
    addresses: _Addresses


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    """Initiator: who I am and whom I want (None: whoever is there)."""

    identity: Identity
    nonce: _Nonce
    wanted: _Incarnation | None
    secret: bool  # whether the proofs are made with a shared secret


class Challenge(Struct, frozen=True, array_like=True, tag="challenge"):
    """Acceptor: who I am."""

    identity: Identity
    nonce: _Nonce


class ProviderOffer(Struct, frozen=True, array_like=True):
    """One provider's offer; its descriptors are the next `descriptors` of those that came along."""

    provider: _Key
    data: Annotated[bytes, Meta(max_length=1 << 14)]
    descriptors: Annotated[int, Meta(ge=0, le=MAX_DESCRIPTORS)]


_Keys: TypeAlias = Annotated[tuple[_Key, ...], Meta(max_length=8)]
_Offers: TypeAlias = Annotated[tuple[ProviderOffer, ...], Meta(max_length=8)]
_Reasons: TypeAlias = Annotated[dict[_Key, _Text], Meta(max_length=MAX_REASONS)]


class Proven(Struct, frozen=True, array_like=True, tag="proven"):
    """A message and the proof that covers it and all before it; `body` is read only if it holds."""

    proof: _Proof
    body: bytes


class Commit(Struct, frozen=True, array_like=True):
    """Initiator, proven: my offers, and why I make no others. With link=False I only want to know
    who is there.
    """

    link: bool
    offers: _Offers
    reasons: _Reasons = {}


class Accept(Struct, frozen=True, array_like=True):
    """Acceptor, proven: my offers, and why I cannot use some of yours."""

    offers: _Offers
    reasons: _Reasons


class Ready(Struct, frozen=True, array_like=True):
    """Initiator, proven: the link is up with these providers; why I cannot use the others."""

    providers: _Keys
    reasons: _Reasons


class Refuse(Struct, frozen=True, array_like=True, tag="refuse"):
    """Acceptor: no. `code` is one of those below."""

    code: _Key
    text: _Text


DUPLICATE = "duplicate"
CLOSING = "closing"
SECRET = "secret"
UNKNOWN = "unknown"


class Join(Struct, frozen=True, array_like=True, tag="join"):
    """Instead of a hello: this socket is one more stream of that link."""

    link: _Link
    number: _Stream
    proof: _Proof


class Joined(Struct, frozen=True, array_like=True, tag="joined"):
    """It is."""

    proof: _Proof


Handshake: TypeAlias = Hello | Challenge | Proven | Refuse | Join | Joined


class Ask(Struct, frozen=True, array_like=True, tag="ask"):
    """A question that wants an Answer with the same number."""

    number: _Id
    topic: _Key
    body: bytes


class Answer(Struct, frozen=True, array_like=True, tag="answer"):
    """The answer; when it is an error, `body` is its text in UTF-8."""

    number: _Id
    ok: bool
    body: bytes


class Tell(Struct, frozen=True, array_like=True, tag="tell"):
    """Something that wants no answer."""

    topic: _Key
    body: bytes


Control: TypeAlias = Ask | Answer | Tell

encode = msgspec.msgpack.Encoder().encode
_decode_handshake = msgspec.msgpack.Decoder(Handshake).decode
_decode_control = msgspec.msgpack.Decoder(Control).decode

Expected = TypeVar("Expected", bound=Struct)

_BROKE = "the peer broke the handshake protocol"


def printable(text: str) -> str:
    """A peer's words, safe to log."""
    return "".join(c if c.isprintable() else "?" for c in text)[:MAX_WORDS]


def check_preamble(received: bytes) -> None:
    """Raises VersionMismatch for a foreign protocol or another version of ours."""
    if not is_ours(received):
        raise VersionMismatch("the other end does not speak tensor-transport's protocol")
    version = int.from_bytes(received[len(_MAGIC) :], "little")
    if version != PROTOCOL_VERSION:
        theirs = f"the peer speaks protocol version {version}, this engine {PROTOCOL_VERSION}"
        raise VersionMismatch(f"{theirs}; install the same release of tensor-transport on both")


def is_ours(preamble: bytes) -> bool:
    """Whether it is some version of this protocol."""
    return preamble[: len(_MAGIC)] == _MAGIC


def frame(message: Handshake) -> bytes:
    """A message with its length before it."""
    body = encode(message)
    if len(body) > MAX_FRAME:
        raise PeerRefused(
            f"this engine's handshake message has {len(body)} bytes, over {MAX_FRAME}"
        )
    return LENGTH.pack(len(body)) + body


def _decode(body: bytes) -> Handshake:
    try:
        return _decode_handshake(body)
    except UNDECODABLE:
        raise PeerRefused(f"{_BROKE}: undecodable message") from None


def is_join(body: bytes) -> bool:
    """Whether the first message is that of a further stream. Raises PeerRefused for no message."""
    return isinstance(_decode(body), Join)


def decode_handshake(body: bytes, expected: type[Expected]) -> Expected | Refuse:
    """Reads a message of the expected kind or a refusal. Raises PeerRefused for the rest."""
    message = _decode(body)
    if isinstance(message, (expected, Refuse)):
        return message
    said, wanted = type(message).__name__.lower(), expected.__name__.lower()
    raise PeerRefused(f"{_BROKE}: {said} where {wanted} was due")


def decode_proven(body: bytes, expected: type[Expected]) -> Expected:
    """Reads the inside of a Proven message whose proof holds."""
    try:
        return msgspec.msgpack.decode(body, type=expected)
    except UNDECODABLE:
        raise PeerRefused(f"{_BROKE}: undecodable {expected.__name__.lower()}") from None


def decode_control(body: bytes) -> Control:
    """Reads a control message. Raises PeerRefused for anything else."""
    try:
        return _decode_control(body)
    except UNDECODABLE:
        raise PeerRefused("undecodable control message") from None
