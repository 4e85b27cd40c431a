"""What a publisher says of itself, as bytes: who asks, what is offered, where everything lies.

May import memory, sharding, control's bodies and errors. All of it comes from a peer: every field
is bounded and checked before it is used. What is large, the layout and the card, lies in registered
memory that readers read one-sidedly; control messages only carry the handles of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from transport.control import bodies
from transport.errors import InvalidUse
from transport.memory.remote import Owner, RemoteRegion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

JOIN, LEAVE = "weights.join", "weights.leave"
PROTOCOL = 1
READER_BYTES = 16  # of the random id of a subscription
MAX_NAME = 1024  # bytes
MAX_BLOB = 1 << 30  # bytes of a layout or a card
MAX_SLOTS = 256
MAX_RANK = (1 << 31) - 1
_MAX_PARTS = 64  # ranks that one engine publishes under one name
_MAX_TENSORS = 1 << 24


class Question(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Asks for a name, and for a seat in each of its parts; or leaves those seats."""

    protocol: int
    name: str
    reader: bytes


class Part(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One rank's part of a publication, by handles (`RemoteRegion.to_bytes`)."""

    rank: int
    layout_key: bytes  # parts of one mesh have one layout, which is then read once
    layout: bytes
    card: bytes
    words: bytes
    seat: bytes


class Offer(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The answer: the parts of that name that the engine has, none where it has none (yet)."""

    protocol: int
    parts: list[Part]


class _Card(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Where the tensors lie: for each slot and each tensor, in the order of their names, in which
    memory and at which byte."""

    protocol: int
    slots: int
    tensors: int
    incarnation: bytes
    addresses: list[str]
    memories: list[tuple[bytes, bytes]]  # the C half of a handle, and its keys
    which: bytes  # int32, slots x tensors
    where: bytes  # int64, slots x tensors


encode = bodies.encode


def decode(data: bytes, kind: type[bodies.T]) -> bodies.T:
    """Reads a message of this kind. Raises InvalidUse."""
    return bodies.decode(data, kind, PROTOCOL, InvalidUse)


def question(data: bytes) -> Question:
    asked = decode(data, Question)
    if len(asked.reader) != READER_BYTES:
        raise InvalidUse(f"a reader's id has {READER_BYTES} bytes, not {len(asked.reader)}")
    return asked


def offer(data: bytes) -> Offer:
    made = decode(data, Offer)
    ranks = [part.rank for part in made.parts]
    if len(ranks) > _MAX_PARTS or len(set(ranks)) != len(ranks):
        raise InvalidUse("an offer names a rank twice, or too many of them")
    if any(not 0 <= rank <= MAX_RANK for rank in ranks):
        raise InvalidUse("an offer's rank is outside 0 to 2^31 - 1")
    return made


def check_name(name: Any) -> str:
    """Raises InvalidUse for what is no name."""
    return bodies.check_name(name, MAX_NAME)


def check_rank(rank: Any) -> int:
    """Raises InvalidUse for what is no rank."""
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
        raise InvalidUse(f"a rank is a whole number, not {rank!r:.80}")
    if not 0 <= rank <= MAX_RANK:
        raise InvalidUse(f"a rank is between 0 and {MAX_RANK}, not {rank!r:.80}")
    return int(rank)


def write_card(slots: Sequence[Mapping[str, RemoteRegion]]) -> bytes:
    """A card of handles, which are all of one engine."""
    names = sorted(slots[0])
    owners: dict[int, int] = {}
    memories: list[tuple[bytes, bytes]] = []
    which, where = (np.empty((len(slots), len(names)), kind) for kind in ("<i4", "<i8"))
    first = None
    for slot, handles in enumerate(slots):
        for number, name in enumerate(names):
            owner = handles[name]._owner
            first = first or owner
            if id(owner) not in owners:
                owners[id(owner)] = len(memories)
                memories.append((owner.native, owner.keys))
            which[slot, number] = owners[id(owner)]
            where[slot, number] = handles[name].offset
    incarnation, addresses = (first.incarnation, first.addresses) if first else (bytes(16), ())
    return encode(
        _Card(
            PROTOCOL,
            len(slots),
            len(names),
            incarnation,
            list(addresses),
            memories,
            which.tobytes(),
            where.tobytes(),
        )
    )


def read_card(
    data: bytes, shapes: Mapping[str, tuple[Sequence[int], str]]
) -> list[dict[str, RemoteRegion]]:
    """The handles by slot and name. `shapes` are the rank's local tensors by its layout.

    Raises InvalidUse.
    """
    card = decode(data, _Card)
    if not 0 < card.slots <= MAX_SLOTS or card.tensors != len(shapes):
        raise InvalidUse(
            f"a card of {card.slots} slots and {card.tensors} tensors is not one for"
            f" {len(shapes)} tensors"
        )
    owners = [
        Owner.make(card.incarnation, card.addresses, native, keys) for native, keys in card.memories
    ]
    which = _table(card.which, "<i4", card, len(owners))
    where = _table(card.where, "<i8", card, 1 << 62)
    names = sorted(shapes)
    return [
        {
            name: RemoteRegion(owners[memory], offset, shapes[name][1], shapes[name][0])
            for name, memory, offset in zip(names, row_which.tolist(), row_where.tolist())
        }
        for row_which, row_where in zip(which, where)
    ]


def _table(data: bytes, kind: str, card: _Card, bound: int) -> NDArray[Any]:
    size = np.dtype(kind).itemsize * card.slots * card.tensors
    if len(data) != size or card.tensors > _MAX_TENSORS:
        raise InvalidUse("a card's table is not of its size")
    table: NDArray[Any] = np.frombuffer(data, kind).reshape(card.slots, card.tensors)
    if table.size and not 0 <= int(table.min()) <= int(table.max()) < bound:
        raise InvalidUse("a card's table points outside its memories")
    return table
