"""What members of a group say to each other and to their meeting, as bytes.

May import memory, control's addresses and bodies, and errors. All of it comes from a peer: every
field is bounded and checked before it is used.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from transport.control import bodies
from transport.control.address import TcpAddress, parse
from transport.errors import PeerError
from transport.memory.remote import RemoteRegion

if TYPE_CHECKING:
    from collections.abc import Iterable

PROTOCOL = 1
MAX_RANKS = 1 << 14
MAX_NAME = 256  # bytes
MAX_KEY = 512  # bytes
MAX_VALUE = 1 << 17  # bytes; what is larger is cut
ID_BYTES = 8  # of a communicator

_Key = Annotated[str, msgspec.Meta(max_length=MAX_KEY)]
_Value = Annotated[bytes, msgspec.Meta(max_length=MAX_VALUE)]
_Id = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]


class Question(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Asks a meeting. `verb` is one of set, get, add, swap, drop, count."""

    protocol: int
    meeting: _Key
    verb: Annotated[str, msgspec.Meta(max_length=8)]
    key: _Key
    value: _Value = b""
    expected: _Value = b""
    number: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)] = 0
    patience: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0


class Answer(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """`found` is False where there is no such key (yet); `number` is what add and count gave."""

    found: bool
    value: _Value = b""
    number: int = 0


class Card(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One rank. `door` is the handle of its hub, `machine` is alike for processes that reach each
    other over the loopback interface, `host` is the address by which others reach it ("" if none).
    """

    protocol: int
    rank: _Rank
    door: Annotated[bytes, msgspec.Meta(max_length=4096)]
    machine: Annotated[str, msgspec.Meta(max_length=128)]
    host: Annotated[str, msgspec.Meta(max_length=256)]
    uid: int
    pid: int
    nonce: _Id  # of one attempt to join
    kept: int = 0  # all-reduces that tolerate failures which it has finished
    former: Annotated[int, msgspec.Meta(ge=-1, lt=MAX_RANKS)] = -1  # rank in the generation before

    @property
    def region(self) -> RemoteRegion:
        return RemoteRegion.from_bytes(self.door)


class Rule(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Calls of this kind ("*": any) on this type of device, with at least `least` bytes in each
    part, are for a carrier: in groups of at most `ranks` (0: of any size), on one machine only
    with `near`."""

    kind: Annotated[str, msgspec.Meta(max_length=32)]
    device: Annotated[str, msgspec.Meta(max_length=32)]
    least: Annotated[int, msgspec.Meta(ge=0)]
    carrier: Annotated[str, msgspec.Meta(max_length=32)]
    ranks: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)] = 0
    near: bool = False


class Opening(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """What rank 0 decides for a generation."""

    protocol: int
    id: _Id
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    rules: Annotated[list[Rule], msgspec.Meta(max_length=4096)]  # see Choice


class Roster(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """All ranks of a generation, in order."""

    protocol: int
    id: _Id
    cards: list[bytes]
    total: Annotated[int, msgspec.Meta(ge=0, le=MAX_RANKS)] = 0  # of all rows
    failure: Annotated[str, msgspec.Meta(max_length=1024)] = ""  # why there are none


class Word(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A notice between members. `what` is "lost" (of `rank`), or "left" or "late" (of the sender,
    which gave up at a deadline)."""

    id: _Id
    what: Annotated[str, msgspec.Meta(max_length=8)]
    rank: _Rank
    why: Annotated[str, msgspec.Meta(max_length=1024)] = ""


class Place(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """How far a member is: how many collectives it has begun, and the last one in words."""

    begun: int
    last: Annotated[str, msgspec.Meta(max_length=512)]


class Asked(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Whether a member has seen decided what is made at this meeting."""

    place: _Key


class Ticket(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """For newcomers: where the generation is made that they are to be of."""

    protocol: int
    place: _Key
    generation: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
    newcomers: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]


encode = bodies.encode


def decode(data: bytes, kind: type[bodies.T]) -> bodies.T:
    """Reads a message of this kind. Raises PeerError."""
    return bodies.decode(data, kind, PROTOCOL, PeerError)


def mine(
    rank: int,
    door: RemoteRegion,
    addresses: Iterable[str],
    *,
    kept: int = 0,
    former: int = -1,
) -> Card:
    """This process as a rank whose engine listens there; a new one each time."""
    hosts = [parse(each) for each in addresses]
    host = next((each.host for each in hosts if isinstance(each, TcpAddress)), "")
    return Card(PROTOCOL, rank, door.to_bytes(), _machine(), host, *_who(), kept, former)


def _who() -> tuple[int, int, bytes]:
    return os.getuid(), os.getpid(), os.urandom(ID_BYTES)


def _machine() -> str:
    """Alike for processes of one kernel and one network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        boot, space = socket.gethostname(), 0
    return f"{boot}/{space}"


def check_name(name: Any) -> str:
    """Raises InvalidUse for what is no name."""
    return bodies.check_name(name, MAX_NAME)
