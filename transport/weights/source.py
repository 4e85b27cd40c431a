"""One rank's part of a publication, as a reader found it.

May import engine, control, memory, sharding, types and errors. What comes from the peer is checked
here: sizes before memory is taken, handles before they are used.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transport.errors import InvalidUse, LayoutError, TransportError
from transport.memory.remote import RemoteRegion
from transport.sharding.state import StateLayout
from transport.weights import card
from transport.weights.registry import registry_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.control.records import PeerRecord
    from transport.engine.engine import Engine
    from transport.weights.clock import Clock

_ASKING = 16  # addresses that are asked at once
_ASK = 5.0  # seconds for one of them


class Source(NamedTuple):
    """Handles of one part; its address is where it was asked for."""

    rank: int
    address: str
    record: PeerRecord
    layout_key: bytes
    layout: RemoteRegion
    card: RemoteRegion
    words: RemoteRegion
    seat: RemoteRegion

    @property
    def slots(self) -> int:
        return len(self.words)


class Answer(NamedTuple):
    """What became of asking one address."""

    address: str
    sources: list[Source]
    error: TransportError | None


def ask_all(
    engine: Engine,
    addresses: Sequence[str],
    question: card.Question,
    clock: Clock,
    asked: dict[bytes, PeerRecord],
) -> list[Answer]:
    """Asks every address for its parts, some at once. An engine with two addresses answers once.

    Whoever may have kept a seat is added to `asked`, also where no answer comes.
    """
    with ThreadPoolExecutor(min(_ASKING, len(addresses)), "transport-ask") as pool:
        answers = list(pool.map(lambda it: _ask(engine, it, question, clock, asked), addresses))
    seen: set[tuple[bytes, int]] = set()
    for answer in answers:
        mine = {(source.record.incarnation, source.rank): source for source in answer.sources}
        answer.sources[:] = [source for key, source in mine.items() if key not in seen]
        seen.update(mine)
    return answers


def leave(engine: Engine, record: PeerRecord, question: card.Question) -> None:
    """Gives the seats back; a peer that does not hear it notices when the connection ends."""
    with contextlib.suppress(TransportError):
        body = card.encode(question)
        if record.incarnation == engine.incarnation:
            registry_of(engine).leave(record, body)
        else:
            with engine._core as core:
                core.plane.send(record, card.LEAVE, body)


def read_layout(engine: Engine, source: Source, clock: Clock) -> StateLayout:
    """Raises LayoutError for one that is not what its key says."""
    layout = StateLayout.decode(_read_blob(engine, source.layout, clock.left()))
    if layout.key != source.layout_key:
        raise LayoutError(f"the layout that {source.address} sent is not the one it announced")
    return layout


def read_slots(
    engine: Engine, source: Source, layout: StateLayout, clock: Clock | None
) -> list[dict[str, RemoteRegion]]:
    """The handles of its tensors in each slot. Raises InvalidUse for a card that does not fit."""
    data = _read_blob(engine, source.card, None if clock is None else clock.left())
    slots = card.read_card(data, layout.local_shapes(source.rank))
    if any(it.incarnation != source.record.incarnation for it in slots[0].values()):
        raise InvalidUse(f"{source.address} offers tensors of another engine")
    if len(slots) != source.slots:
        raise InvalidUse(f"{source.address} has {source.slots} words for {len(slots)} slots")
    return slots


def _ask(
    engine: Engine,
    address: str,
    question: card.Question,
    clock: Clock,
    asked: dict[bytes, PeerRecord],
) -> Answer:
    try:
        limit = clock.at_most(_ASK)
        record = engine.connect(address, timeout=limit)._record
        body = card.encode(question)
        asked[record.incarnation] = record
        if record.incarnation == engine.incarnation:
            data = registry_of(engine).join(record, body)
        else:
            with engine._core as core:
                future = core.plane.request(record, card.JOIN, body, limit)
            data = future.result()
        parts = card.offer(data).parts
        return Answer(address, [_source(address, record, part) for part in parts], None)
    except TransportError as error:
        return Answer(address, [], error.with_traceback(None))


def _source(address: str, record: PeerRecord, part: card.Part) -> Source:
    """Raises InvalidUse for handles that are not what they must be."""
    named = (part.layout, part.card, part.words, part.seat)
    layout, made, words, seat = map(RemoteRegion.from_bytes, named)
    for blob in (layout, made):
        if blob.dtype != "uint8" or len(blob.shape) != 1 or blob.nbytes > card.MAX_BLOB:
            raise InvalidUse(f"{address} offers a {blob.dtype}{list(blob.shape)} to be read")
    if words.dtype != "uint64" or len(words.shape) != 1 or not 0 < len(words) <= card.MAX_SLOTS:
        raise InvalidUse(f"{address} offers {words!r} as words")
    if any(it.incarnation != record.incarnation for it in (layout, made, words, seat)):
        raise InvalidUse(f"{address} offers memory of another engine")
    if seat.dtype != "uint64" or seat.shape != (1,):
        raise InvalidUse(f"{address} offers {seat!r} as a seat")
    return Source(part.rank, address, record, bytes(part.layout_key), layout, made, words, seat)


def _read_blob(engine: Engine, remote: RemoteRegion, deadline: float | None) -> bytes:
    try:
        data = np.empty(remote.nbytes, np.uint8)
    except MemoryError:
        raise InvalidUse(f"a peer announces {remote.nbytes} bytes, more than there are") from None
    engine.read(remote, data, deadline=deadline).wait()
    return data.tobytes()
