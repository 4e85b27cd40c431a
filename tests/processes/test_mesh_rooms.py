"""Arguments that their caller writes to memory of the actor's process, in real processes."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import mesh_room_actors
import msgspec
import numpy as np
import pytest
import torch

import transport
from transport import ActorCrashed, ActorError
from transport.config import Settings
from transport.mesh import messages as m
from transport.mesh import payload, rooms, tensors
from transport.mesh.cut import cut
from transport.mesh.future import Future
from transport.mesh.member import Pending
from transport.types import Access

MIB = 1 << 20
COUNT = MIB  # float32 elements: 4 MiB, which no message carries
WAIT = 60  # seconds at most for what takes milliseconds


@pytest.fixture(scope="module", autouse=True)
def _engine():
    yield
    tensors.close()


@pytest.fixture(scope="module")
def pair():
    with transport.local(2, name="pair", host={"preload": ["torch"]}) as mesh:
        yield mesh


@pytest.fixture
def guest(pair):
    """An actor that has not been called yet, in a process that may have offered rooms."""
    actors = pair.slice(rank=0).spawn("guest", mesh_room_actors.Guest)
    yield actors
    pair.discard(actors)


def comes(fact):
    """Whether it becomes true: rooms are made and given back behind the answers."""
    end = time.monotonic() + WAIT
    while not fact():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def member_of(actor):
    return actor._team.member(actor._shape.ranks[0])


def offered(actor, size=COUNT * 4):
    """The offers, once one is for so much: made by calls from here."""
    offers = member_of(actor).offers

    def there():
        if any(size <= it.remote.nbytes < 2 * size for it in tuple(offers._offers.values())):
            return True
        actor.total.call_one(torch.zeros(size // 4)).get(WAIT)
        time.sleep(0.05)
        return False

    assert comes(there)
    return offers


def bytes_to(actor):
    """What this process has moved to and from the engine of an actor's process."""
    owner = next(iter(offered(actor)._offers.values())).remote.incarnation
    peers = [peer for peer in tensors.here().engine.peers if peer.incarnation == owner]
    return sum(it["bytes"] for peer in peers for it in peer.counters().values() if "bytes" in it)


def test_the_caller_copies_once_and_nothing_is_read(guest):
    before = bytes_to(guest)
    assert guest.total.call_one(torch.ones(COUNT)).get(WAIT) == [float(COUNT)]
    assert bytes_to(guest) - before >= 4 * COUNT
    assert guest.pid.call_one().get(WAIT)


def test_changing_sizes_and_a_source_that_changes(guest):
    random.seed(7)
    source = torch.empty(4 * COUNT)
    for number in range(60):
        size = random.choice([COUNT, COUNT + 1, COUNT // 2, 4 * COUNT, random.randint(1, COUNT)])
        source[:size].fill_(number)
        answer = guest.total.call_one(source[:size])
        assert answer.get(WAIT) == [float(number * size)]
        source.fill_(-1)


def test_what_an_actor_keeps_no_later_call_changes(guest):
    source, sums = torch.empty(COUNT), []
    for number in range(12):
        source.fill_(number)
        sums.append(guest.keep.call_one(source).get(WAIT))
    source.fill_(-1)
    assert sums == guest.sums.call_one().get(WAIT) == [float(n * COUNT) for n in range(12)]


def test_many_memories_of_several_kinds(guest):
    size = 8 * COUNT + 64
    offered(guest, size)
    readonly = np.full(COUNT, 3.0, np.float32)
    readonly.flags.writeable = False
    parameter = torch.nn.Parameter(torch.full((COUNT - 16,), 2.0))
    for _ in range(3):
        values = parameter, readonly, torch.ones(8)
        found = guest.total.call_one(*values).get(WAIT)
        assert found == [2.0 * (COUNT - 16), 3.0 * COUNT, 8.0]
    assert guest.changed.call_one(torch.ones(COUNT)).get(WAIT) == 2.0 * COUNT


def test_what_came_in_a_room_is_passed_on_and_stays(pair, guest):
    offered(guest)
    guest.keep.call_one(torch.ones(COUNT)).get(WAIT)
    kept = guest.stay.options(keep="remote").call_one().get(WAIT)
    assert float(kept.fetch().sum()) == COUNT
    assert torch.equal(guest.stay.call_one().get(WAIT), torch.ones(COUNT))
    other = pair.slice(rank=1).spawn("guest", mesh_room_actors.Guest)
    for _ in range(3):
        found = guest.pass_on.call_one(other, torch.ones(COUNT)).get(WAIT)
        assert found == [float(COUNT)]


def used(actor):
    """Rooms that this process has offered to an actor's."""
    return rooms.shared()._of[member_of(actor).link]


def test_results_come_by_rooms_of_the_caller(guest):
    kept = []
    for number in range(20):
        kept.append(guest.give.call_one(number).get(WAIT))
        assert comes(lambda: any(not room.claimed for room in used(guest).values()))
    assert [float(it[0]) for it in kept] == [float(it[-1]) for it in kept] == list(range(20))
    assert tensors.here().access_of(kept[-1]) is Access.WRITE
    kept[-1].zero_()


def test_results_that_nobody_asks_for_give_their_rooms_back(guest):
    guest.give.call_one(1).get(WAIT)
    assert comes(lambda: used(guest))
    for number in range(6):
        guest.give.call_one(number)
    assert guest.give.call_one(7).get(WAIT)[5] == 7.0
    assert comes(lambda: not any(room.claimed for room in used(guest).values()))


def test_a_result_is_there_when_its_actor_was_killed_after_it():
    with transport.local(1, name="dying", host={"preload": ["torch"]}) as mesh:
        actor = mesh.spawn("guest", mesh_room_actors.Guest)
        pid = actor.pid.call_one().get(WAIT)
        while not used(actor):
            actor.give.call_one(1).get(WAIT)
            time.sleep(0.05)
        answer = actor.give.call_one(2)
        assert comes(answer.done)
        os.kill(pid, signal.SIGKILL)
        assert comes(lambda: member_of(actor).crash)
        assert float(answer.get(WAIT).sum()) == 2.0 * COUNT


def test_an_actor_of_this_process():
    actor = transport.this_proc().spawn("guest", mesh_room_actors.Guest)
    for number in range(8):
        source = torch.full((COUNT,), float(number))
        assert actor.total.call_one(source).get(WAIT) == [float(number * COUNT)]
        assert float(actor.give.call_one(number).get(WAIT)[-1]) == number


def test_an_async_actor_and_several_calls_at_once(pair):
    actor = pair.slice(rank=0).spawn("loop", mesh_room_actors.Loop)
    for _ in range(5):
        answers = [actor.total.call_one(torch.full((COUNT,), float(n))) for n in range(4)]
        assert [it.get(WAIT) for it in answers] == [[float(n * COUNT)] for n in range(4)]
    assert comes(lambda: member_of(actor).offers._offers)


def test_two_threads_at_once(guest):
    wrong = []

    def call(value):
        source = torch.full((COUNT,), value)
        found = [guest.total.call_one(source).get(WAIT) for _ in range(30)]
        wrong.extend(it for it in found if it != [value * COUNT])

    threads = [threading.Thread(target=call, args=(value,)) for value in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not wrong


def test_an_endpoint_that_raises_gives_its_room_back(guest):
    offers = offered(guest)
    for _ in range(4):
        with pytest.raises(ActorError, match="ValueError"):
            guest.fails.call_one(torch.ones(COUNT)).get(WAIT)
        assert comes(lambda: offers._offers)
    with pytest.raises(ActorError, match="no endpoint"):
        transport.mesh.call.Endpoint(
            guest._team, guest._shape, guest._actor, "guest", "none", spawned=guest._spawned
        ).call_one(torch.ones(COUNT)).get(WAIT)
    assert comes(lambda: offers._offers)


def test_rooms_are_given_back_when_nobody_uses_them(guest):
    offers = offered(guest)
    assert guest.rooms.call_one().get(WAIT)[0] >= 4 * COUNT
    offers._idle = 0.05
    assert comes(lambda: guest.rooms.call_one().get(WAIT) == (0, 0))
    offers._idle = 60.0
    assert guest.total.call_one(torch.ones(COUNT)).get(WAIT) == [float(COUNT)]


def test_a_size_that_is_too_large_gets_none():
    settings = Settings(mesh_room=MIB)
    with transport.local(1, settings=settings, host={"preload": ["torch"]}) as mesh:
        actor = mesh.spawn("guest", mesh_room_actors.Guest)
        for _ in range(3):
            assert actor.total.call_one(torch.ones(COUNT)).get(WAIT) == [float(COUNT)]
        assert actor.rooms.call_one().get(WAIT)[0] == 0
        assert not member_of(actor).offers._offers


# ------------------------------------------------------------------------------------------- deaths
@pytest.mark.parametrize("seed", range(2))
def test_a_caller_that_is_killed_while_it_writes(pair, guest, seed):
    with transport.local(1, name="dying", host={"preload": ["torch"]}) as mesh:
        caller = mesh.spawn("caller", mesh_room_actors.Guest)
        pid = caller.pid.call_one().get(WAIT)
        assert caller.pour.call_one(guest, 4 * COUNT, 3).get(WAIT) == 3
        answer = caller.pour.call_one(guest, 4 * COUNT, 1 << 30)
        time.sleep(0.2 + random.Random(seed).random() / 20)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ActorCrashed):
            answer.get(WAIT)
    source = torch.empty(4 * COUNT)
    for number in range(10):  # its blocks come back, and nothing of it lands in them
        source.fill_(number)
        assert guest.keep.call_one(source).get(WAIT) == 4.0 * number * COUNT
    sums = [4.0 * number * COUNT for number in range(10)]
    assert guest.sums.call_one().get(WAIT) == sums
    guest.forget.call_one().get(WAIT)
    member_of(guest).offers._idle = 0.05
    assert comes(lambda: guest.rooms.call_one().get(WAIT) == (0, 0))
    member_of(guest).offers._idle = 60.0


def test_an_actor_that_is_killed_while_it_is_written_to():
    with transport.local(1, name="dying", host={"preload": ["torch"]}) as mesh:
        actor = mesh.spawn("guest", mesh_room_actors.Guest)
        pid = actor.pid.call_one().get(WAIT)
        offered(actor)
        killer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(ActorCrashed):
            call_for_ever(actor)
        killer.join()


def call_for_ever(actor):
    while True:
        actor.total.call_one(torch.ones(COUNT)).get(WAIT)


# ------------------------------------------------------------------------------------------ hostile
MEMORY = payload.Memory("storage", size=4 * COUNT)


def ask(actor, room, memory):
    """A call as no honest caller makes it."""
    answer = Future(1, lambda values: values[0])
    body = cut(((torch.ones(COUNT),), {})).body
    data = msgspec.msgpack.encode(payload.Wire(body, [memory]))

    def make(number):
        return m.Call(number, actor._actor, "total", WAIT, True, room=room)

    pending = Pending(answer, 0, "guest.total", time.monotonic() + WAIT)
    member_of(actor).ask(make, data, pending)
    return answer


def refused(answer):
    with pytest.raises(ActorError, match=r"room|no value"):
        answer.get(WAIT)


@pytest.mark.parametrize("kind", ["storage", "buffer"])
@pytest.mark.parametrize("size", [-1, 0, 8 * COUNT, 1 << 62])
def test_memories_that_do_not_lie_in_their_room(guest, kind, size):
    number = offered(guest).take(4 * COUNT).number
    refused(ask(guest, number, payload.Memory(kind, size=size)))


def test_what_cannot_lie_in_a_room(guest):
    refused(ask(guest, offered(guest).take(4 * COUNT).number, payload.Memory("gpu", size=4)))


@pytest.mark.parametrize("number", [0, 1 << 40])
def test_a_room_that_was_never_offered(guest, number):
    offered(guest)
    refused(ask(guest, number, MEMORY))


def test_one_room_in_two_calls(guest):
    number = offered(guest).take(4 * COUNT).number
    answers = [ask(guest, number, MEMORY) for _ in range(3)]
    answers[0].get(WAIT)
    for answer in answers[1:]:
        refused(answer)


def test_a_room_that_was_left_is_none(guest):
    offers = offered(guest)
    number = offers.take(4 * COUNT).number
    offers.leave(number)
    offers.leave(number)
    refused(ask(guest, number, MEMORY))
    assert guest.total.call_one(torch.ones(COUNT)).get(WAIT) == [float(COUNT)]
