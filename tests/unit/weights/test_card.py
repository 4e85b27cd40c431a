"""What publishers say of themselves: there and back, and hostile answers are refused untouched."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from states import FULL, blank, same

from transport import Engine, InvalidUse, LayoutError, TransportError, weights
from transport.weights import card
from transport.weights.registry import registry_of

SHAPES = {"a": ((4, 3), "float32"), "b": ((5,), "int64"), "none": ((0,), "uint8")}


@pytest.fixture(scope="module")
def handles():
    with Engine() as engine:
        arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in SHAPES.items()}
        regions = {name: engine.register(array) for name, array in arrays.items()}
        yield {name: region.remote() for name, region in regions.items()}
        for region in regions.values():
            region.close()


def test_there_and_back(handles):
    slots = [handles, handles]
    assert card.read_card(card.write_card(slots), SHAPES) == slots
    assert card.read_card(card.write_card([{}]), {}) == [{}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, 2),
        (1, 0),
        (1, card.MAX_SLOTS + 1),
        (1, 2),
        (2, 4),
        (2, -1),
        (3, b"short"),
        (4, ["x" * 600]),
        (5, []),
        (5, [[b"short", b""]]),
        (6, b""),
        (6, np.array([0, 1, 99], "<i4").tobytes()),
        (6, np.array([0, 1, -1], "<i4").tobytes()),
        (7, np.array([0, 0, 1 << 40], "<i8").tobytes()),
        (7, np.array([48, 0, 0], "<i8").tobytes()),
        (7, np.array([-8, 0, 0], "<i8").tobytes()),
        (7, b"x" * 24),
    ],
)
def test_a_spoilt_card(handles, field, value):
    parts = msgspec.msgpack.decode(card.write_card([handles]))
    parts[field] = value
    with pytest.raises(InvalidUse):
        card.read_card(msgspec.msgpack.encode(parts), SHAPES)


@given(st.binary(max_size=200))
def test_any_bytes(data):
    for read in (card.question, card.offer, lambda data: card.read_card(data, SHAPES)):
        with pytest.raises(InvalidUse):
            read(data)


# ---------------------------------------------------------------------------- a hostile publisher
def spoil_part(part, other):
    """Ways to answer that must not be believed."""
    word = other.register(np.zeros(1, np.uint64)).remote().to_bytes()
    blob = other.register(np.zeros(64, np.uint8)).remote().to_bytes()
    yield "of another engine", {"seat": word}
    yield "of another engine", {"words": word}
    yield "of another engine", {"card": blob}
    yield "to be read", {"layout": part.words}
    yield "as words", {"words": part.card}
    yield "as a seat", {"seat": part.card}
    yield "not a remote region", {"card": b"nonsense"}
    yield "2\\^31", {"rank": -1}
    yield "2\\^31", {"rank": 1 << 40}
    yield "not the one it announced", {"layout_key": b"another"}
    yield "describe no layouts", {"layout": part.card}


@pytest.mark.filterwarnings("ignore:unclosed region")
def test_hostile_offers(monkeypatch):
    with (
        Engine() as owner,
        Engine() as other,
        Engine() as reader,
        weights.publish(owner, "w", FULL, 1) as publication,
    ):
        announcement = publication._announcement
        honest = type(announcement).part
        record = reader.connect(owner.addresses[0])._record
        cases = list(spoil_part(honest(announcement, 0, bytes(16), record), other))
        for words, changes in cases:

            def lying(self, *arguments, changes=changes):
                return msgspec.structs.replace(honest(self, *arguments), **changes)

            monkeypatch.setattr(type(announcement), "part", lying)
            into = blank()
            with pytest.raises((InvalidUse, LayoutError), match=words):
                weights.fetch(reader, "w", into, owner.addresses[0], deadline=0.3)
            assert same(into, blank())


def test_hostile_questions():
    with Engine() as owner, Engine() as asker, weights.publish(owner, "w", FULL, 1) as publication:
        record = asker.connect(owner.addresses[0])._record
        registry = registry_of(owner)
        bad = [b"", b"\xc1", card.encode(card.Question(2, "w", bytes(16)))]
        bad += [card.encode(card.Question(1, "w", b"short"))]
        for body in bad:
            with pytest.raises(TransportError):
                asker._core.plane.request(record, card.JOIN, body, 5.0).result()
            registry._leave(record, body)
        assert publication.readers == 0


def test_seats_are_bounded():
    from transport.weights.seats import Seats

    with Engine() as owner, Engine() as asker:
        record = asker.connect(owner.addresses[0])._record
        seats = Seats(owner, 3)
        readers = [bytes([number]) * 16 for number in range(4)]
        taken = [seats.take(reader, record) for reader in readers[:3]]
        assert len({seat.offset for seat in taken}) == len(seats) == 3
        assert seats.take(readers[1], record) == taken[1]
        with pytest.raises(TransportError, match="3 readers"):
            seats.take(readers[3], record)
        seats.leave(readers[0], record)
        assert seats.take(readers[3], record) == taken[0]
        asker.write(np.array([8], np.uint64), taken[0]).wait()
        assert seats.reading(7) == 1
        assert not seats.wait(7, 0.01)
        asker.close()
        assert seats.wait(7, 60.0)
        assert len(seats) == 0
        seats.close()
