"""Who has which room, and when it ends; and values that lie in one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transport import Engine, NativeError
from transport.errors import PeerLost, PeerRefused
from transport.mesh import messages as m
from transport.mesh import sending, tensors
from transport.mesh.offers import Offers
from transport.mesh.payload import Context, Payload, decode, encode, room_places
from transport.mesh.rooms import Room, Rooms, furnish

KIB = 1 << 10


@pytest.fixture(scope="module")
def engine():
    with Engine(name="rooms") as engine:
        yield engine


class FakeRoom:
    def __init__(self, size):
        self.size, self.claimed, self.handle, self.closed = size, False, b"handle", False

    def close(self):
        self.closed = True


class FakeLink:
    """The caller's end of a link, and what it was sent."""

    def __init__(self):
        self.sent, self.lost = [], False

    def send(self, message, body=b""):
        if self.lost:
            raise PeerLost("the link is closed")
        self.sent.append(message.number)


class House:
    """Rooms whose errands are run at once, of 100 bytes at most and 250 in all."""

    def __init__(self):
        self.made = []
        self.short = False
        self.rooms = Rooms(100, 250, self._make, lambda action: action())
        self.link = self.caller()

    def caller(self):
        link = FakeLink()
        self.rooms.admit(link)
        return link

    def call(self, large, room=0, link=None):
        """One that comes and is over."""
        link = link or self.link
        self.rooms.claim(link, room)
        self.rooms.done(link, m.Call(1, 1, "take", 1.0, room=room, large=large))

    def _make(self, size):
        if self.short:
            raise NativeError("memory is short")
        self.made.append(FakeRoom(size))
        return self.made[-1]


@pytest.fixture
def house():
    return House()


# ------------------------------------------------------------------------------------------- rooms
def test_a_room_is_offered_after_a_large_call(house):
    house.call(0)
    house.call(101)
    assert house.link.sent == []
    house.call(60)
    assert house.link.sent == [1]
    house.call(60)  # it took another way: the room is still offered
    assert (house.link.sent, house.rooms.nbytes) == ([1], 60)


def test_who_uses_rooms_has_one_ahead(house):
    house.call(60)
    house.call(40, room=1)
    assert house.made[0].closed
    assert house.link.sent == [1, 2, 3]
    assert [room.size for room in house.made] == [60, 60, 60]
    assert house.rooms.nbytes == 120


def test_rooms_are_bounded_in_all(house):
    callers = [house.link, *(house.caller() for _ in range(3))]
    for link in callers:
        house.call(90, link=link)
    assert [len(link.sent) for link in callers] == [1, 1, 0, 0]
    assert house.rooms.nbytes == 180
    house.rooms.left(callers[0], 1)
    house.call(90, link=callers[2])
    assert len(callers[2].sent) == 1


def test_a_room_of_a_call_that_waits_counts_but_is_not_offered(house):
    house.call(100)
    room = house.rooms.claim(house.link, 1)
    assert room is house.rooms.claim(house.link, 1)  # a message may come twice
    house.rooms.left(house.link, 1)
    assert not room.closed
    house.call(100)
    assert (house.link.sent, house.rooms.nbytes) == ([1, 2], 200)


def test_a_caller_has_no_rooms_of_others(house):
    other = house.caller()
    house.call(60)
    assert house.rooms.claim(other, 1) is None
    house.rooms.left(other, 1)
    house.rooms.done(other, m.Call(1, 1, "take", 1.0, room=1))
    assert not house.made[0].closed
    assert house.rooms.claim(house.link, 1) is not None


def test_who_is_not_admitted_gets_none(house):
    stranger = FakeLink()
    house.call(60, link=stranger)
    assert (stranger.sent, house.rooms.claim(stranger, 1)) == ([], None)
    assert house.rooms.nbytes == 0


def test_a_link_that_ends_takes_its_rooms_along(house):
    house.call(60)
    house.call(60, room=1)
    house.rooms.claim(house.link, 2)
    house.rooms.gone(house.link)
    assert [room.closed for room in house.made] == [True] * 3
    assert house.rooms.nbytes == 0
    house.call(60, room=2)
    assert house.rooms.nbytes == 0
    assert len(house.made) == 3


def test_a_link_that_ends_while_a_room_is_made(house, monkeypatch):
    make = house.rooms._make
    monkeypatch.setattr(
        house.rooms, "_make", lambda size: (house.rooms.gone(house.link), make(size))[1]
    )
    house.call(60)
    assert house.made[0].closed
    assert (house.rooms.nbytes, house.link.sent) == (0, [])


def test_a_link_that_ended_and_was_not_heard_of(house):
    house.link.lost = True
    house.call(60)
    assert house.made[0].closed
    assert house.rooms.nbytes == 0


def test_short_memory_is_no_error(house):
    house.short = True
    house.call(60)
    assert (house.link.sent, house.rooms.nbytes) == ([], 0)
    house.short = False
    house.call(60)
    assert house.link.sent == [2]


@given(st.lists(st.tuples(st.sampled_from("culg"), st.integers(0, 5), st.integers(0, 120))))
def test_what_is_counted_is_what_there_is(steps):
    house = House()
    links = [house.link, house.caller()]
    for what, number, size in steps:
        link = links[number % 2]
        if what == "c":
            house.call(size, room=number, link=link)
        elif what == "u":
            house.rooms.claim(link, number)
        elif what == "l":
            house.rooms.left(link, number)
        else:
            house.rooms.gone(link)
        open_rooms = [room for rooms in house.rooms._of.values() for room in rooms.values()]
        assert house.rooms.nbytes == sum(room.size for room in open_rooms) <= 250
        assert not any(room.closed for room in open_rooms)


def test_a_room_is_taken_once_and_not_written_to_then(engine):
    memory = engine.empty(KIB, "uint8", access="write")
    region = engine.register(memory, access="write")
    room, remote = Room(memory, region), region.remote()
    engine.write(np.full(KIB, 7, np.uint8), remote).wait()
    assert (room.take() == 7).all()
    assert region.closed
    with pytest.raises(PeerRefused, match="two values"):
        room.take()
    room.close()


# ------------------------------------------------------------------------------------------ offers
@pytest.fixture
def handle(engine):
    """Of so many bytes."""
    kept = []

    def make(size, access="write"):
        kept.append(engine.register(bytearray(size), access=access))
        return kept[-1].remote().to_bytes()

    yield make
    for region in kept:
        region.close()


@pytest.fixture
def told():
    return []


@pytest.fixture
def offers(told):
    return Offers(lambda message: told.append(message.number), 10.0)


def test_an_offer_is_taken_once_for_what_it_fits(offers, handle, told):
    offers.came(1, handle(100))
    assert offers.take(50) is None
    assert offers.take(51).number == 1
    assert offers.take(51) is None
    assert told == []


def test_what_is_too_small_is_left(offers, handle, told):
    offers.came(1, handle(100))
    offers.came(2, handle(300))
    assert offers.take(200).number == 2
    assert told == [1]


def test_one_that_comes_twice_is_one(offers, handle):
    data = handle(100)
    offers.came(1, data)
    offers.came(1, data)
    assert offers.take(100).number == 1
    offers.came(1, data)
    assert offers.take(100) is None


def test_more_than_a_few_are_left(offers, handle, told):
    for number in range(1, 8):
        offers.came(number, handle(100))
    assert told == [5, 6, 7]


def test_what_is_no_room(offers, handle):
    for data in (b"", b"\x93", handle(100, "read")):
        with pytest.raises(PeerRefused, match="no room"):
            offers.came(1, data)


def test_what_nobody_used_is_left(offers, handle, told):
    now = offers.came(1, handle(100)) - 10.0
    assert now < offers.check(now + 9.0) <= now + 10.0
    assert told == []
    assert offers.check(now + 10.0) == float("inf")
    assert told == [1]
    assert offers.take(100) is None


# ------------------------------------------------------------------------------------------ values
@given(st.lists(st.integers(1, 1000)))
def test_places_in_a_room(sizes):
    *places, end = room_places(sizes)
    ends = [place + size for place, size in zip(places, sizes)]
    assert all(place % 64 == 0 for place in places)
    assert all(end <= place < end + 64 for end, place in zip(ends, places[1:]))
    assert end == (ends[-1] if ends else 0)


class Sent:
    """What is encoded for a receiver in this process that has offered a room of this size."""

    def __init__(self, size):
        self.left = []
        self.room = furnish(size)
        self.offers = Offers(lambda message: self.left.append(message.number), 60.0)
        self.offers.came(1, self.room.handle)

    def encode(self, value, **how):
        return encode(value, Context(offers=self.offers, **how))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.room.close()

    def decode(self, payload):
        return decode(Payload(payload.data), Context(room=self.room if payload.room else None))


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(sending, "inline_bytes", lambda: 256)
    yield
    tensors.close()


@pytest.mark.usefixtures("_small")
def test_values_that_lie_in_a_room():
    whole = torch.arange(4096, dtype=torch.float32)
    readonly = np.arange(512.0)
    readonly.flags.writeable = False
    value = {"whole": whole, "row": whole[7:99], "read": readonly, "array": np.arange(999)}
    with Sent(32 * KIB) as sent:
        payload = sent.encode(value)
        assert (payload.room, payload.held) == (1, True)
        made = sent.decode(payload)
    whole.fill_(-1)
    assert torch.equal(made["whole"], torch.arange(4096, dtype=torch.float32))
    assert np.array_equal(made["array"], value["array"])
    assert np.array_equal(made["read"], readonly)
    assert not made["read"].flags.writeable
    made["row"].zero_()
    assert not made["whole"][7:99].any()
    assert made["whole"].untyped_storage().nbytes() == 4 * 4096


@pytest.mark.usefixtures("_small")
def test_a_room_that_was_closed_is_left_and_the_value_lent():
    value = torch.arange(2 * KIB, dtype=torch.float32)
    sent = Sent(8 * KIB)
    sent.room.close()
    payload = sent.encode(value)
    assert (payload.room, sent.left) == (0, [1])
    assert torch.equal(sent.decode(payload), value)
    payload.release()


@pytest.mark.usefixtures("_small")
def test_a_value_whose_link_ended_after_it_came_is_there():
    with Sent(8 * KIB) as sent:
        value = torch.arange(2 * KIB, dtype=torch.float32)
        payload = sent.encode(value, copy=True)
        assert payload.room == 1
        sent.room.close()
        assert torch.equal(sent.decode(payload), value)


@pytest.mark.usefixtures("_small")
def test_what_is_read_where_it_lies_uses_no_room():
    with Sent(8 * KIB) as sent:
        pooled = tensors.here().engine.empty(2 * KIB, torch.float32, access="read")
        payload = sent.encode(pooled.zero_())
        assert (payload.room, payload.large) == (0, 0)
        payload.release()
        payload = sent.encode([pooled, torch.ones(KIB // 4)])  # of which one would be copied
        assert (payload.room, payload.large) == (0, 9 * KIB)
        payload.release()
    with Sent(8 * KIB) as sent:
        assert sent.encode(pooled, copy=True).room == 1


@pytest.mark.usefixtures("_small")
def test_values_that_do_not_fit_use_no_room():
    with Sent(8 * KIB) as sent:
        for size in (KIB, 16 * KIB):
            payload = sent.encode(torch.zeros(size // 4))
            assert (payload.room, payload.large) == (0, size)
            payload.release()
        assert sent.encode(torch.zeros(4)).large == 0
