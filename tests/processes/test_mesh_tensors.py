"""Tensors in the calls of actors in real processes, some of which are killed."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections import Counter

import mesh_tensor_actors
import numpy as np
import pytest
import torch
from patience import until
from possessions import held, uncollected

import transport
from transport import (
    ActorCrashed,
    ActorError,
    Layout,
    LayoutError,
    Mesh,
    PeerLost,
    Replicate,
    Shard,
    Sharded,
)
from transport.mesh import tensors

MIB = 1 << 20
COUNT = MIB  # float32 elements: 4 MiB, which no message carries
WAIT = 60  # seconds at most for what takes milliseconds
ROUNDS = int(os.environ.get("MESH_TENSOR_ROUNDS", "3"))


@pytest.fixture(scope="module", autouse=True)
def _engine():
    yield
    tensors.close()


@pytest.fixture(scope="module")
def trio():
    """For those who kill nobody."""
    with transport.local(3, name="trio", host={"preload": ["torch"]}) as mesh:
        yield mesh.spawn("keeper", mesh_tensor_actors.Keeper)


@pytest.fixture(scope="module")
def six():
    with transport.local(6, name="six", host={"preload": ["torch"]}) as mesh:
        yield mesh


@pytest.fixture
def mortal(six):
    """Three that may be killed."""
    yield six.slice(rank=slice(3)).spawn("keeper", mesh_tensor_actors.Keeper)
    for rank in six.crashed:
        six.replace(rank)


def one(actors, rank):
    return actors.slice(rank=rank)


def comes(fact):
    """Whether it becomes true: what others let go of is heard of now and then."""
    end = time.monotonic() + WAIT
    while not fact():
        if time.monotonic() > end:
            return False
        gc.collect()
    return True


def test_who_gets_no_large_tensor_makes_no_engine(trio):
    trio.take.call("it", torch.ones(10)).get(WAIT)
    assert trio.opened.call().get(WAIT).values() == [False] * 3


def test_arguments_and_results(trio):
    big, small = torch.arange(COUNT, dtype=torch.float32), torch.ones(3)
    value = {"big": big, "views": [big[::2], big[5:9]], "small": small, "array": np.ones(COUNT)}
    for made in trio.take.call("it", value).get(WAIT).values():
        assert made is None
    for made in trio.give.call("it").get(WAIT).values():
        assert torch.equal(made["big"], big)
        assert torch.equal(made["small"], small)
        assert np.array_equal(made["array"], value["array"])
        made["big"].zero_()
        assert not made["views"][0].any()
        assert not made["views"][1].any()


def test_a_tensor_for_the_constructor(six):
    start = torch.ones(COUNT)
    actors = six.spawn("keeper", mesh_tensor_actors.Keeper, start)
    assert [bool(it.all()) for it in actors.give.call("start").get(WAIT).values()] == [True] * 6
    six.discard(actors)


def test_a_result_is_what_it_was_when_it_was_given(trio):
    keeper = one(trio, 0)
    keeper.make.call_one("it", COUNT, 1).get(WAIT)
    given = keeper.give.call_one("it")
    keeper.fill.call_one("it", 2).get(WAIT)
    assert given.get(WAIT).sum() == COUNT


def test_arguments_may_be_changed_once_the_answer_is_there(trio):
    source = transport.Engine  # the pool's memory is read where it lies
    with source(name="caller") as engine:
        ours = engine.empty(COUNT, torch.float32, access="read")
        for value in range(20):
            ours.fill_(value)
            totals = trio.total.call([ours]).get(WAIT).values()
            assert totals == [float(value) * COUNT] * 3
        del ours


def bytes_from(owner):
    """What this process has moved to and from an engine."""
    peers = [peer for peer in tensors.here().engine.peers if peer.incarnation == owner]
    return sum(it["bytes"] for peer in peers for it in peer.counters().values() if "bytes" in it)


def test_a_remote_tensor_goes_to_a_third_actor_past_the_controller(trio):
    owner, other = one(trio, 0), one(trio, 1)
    owner.make.call_one("it", COUNT, 3).get(WAIT)
    kept = owner.give.options(keep="remote").call_one("it").get(WAIT)
    assert (kept.shape, kept.dtype, kept.device) == ((COUNT,), "float32", "cpu")
    before = bytes_from(kept.owner)
    assert other.fetched.call_one(kept).get(WAIT) == 3 * COUNT
    assert bytes_from(kept.owner) == before
    assert owner.fetched.call_one(kept).get(WAIT) == 3 * COUNT
    assert float(kept[10:20].fetch().sum()) == 30.0


def test_it_lives_as_long_as_somebody_has_it(trio):
    owner, other = one(trio, 0), one(trio, 1)
    owner.make.call_one("it", COUNT, 3).get(WAIT)
    kept = owner.give.options(keep="remote").call_one("it").get(WAIT)
    owner.drop.call_one("it").get(WAIT)
    other.take.call_one("theirs", kept).get(WAIT)
    del kept
    gc.collect()
    assert other.fetch_error.call_one("theirs", WAIT).get(WAIT) == ("", "")
    assert comes(lambda: owner.needs.call_one().get(WAIT)[0] == 1)
    other.drop.call_one("theirs").get(WAIT)
    assert comes(lambda: owner.needs.call_one().get(WAIT)[0] == 0)


def test_a_holder_that_is_killed_holds_nothing(mortal):
    owner, holder = one(mortal, 0), one(mortal, 1)
    owner.make.call_one("it", COUNT, 3).get(WAIT)
    kept = owner.give.options(keep="remote").call_one("it").get(WAIT)
    holder.take.call_one("theirs", kept).get(WAIT)
    del kept
    gc.collect()
    os.kill(holder.pid.call_one().get(WAIT), signal.SIGKILL)
    assert comes(lambda: owner.needs.call_one().get(WAIT)[0] == 0)
    assert one(mortal, 2).total.call_one([torch.ones(COUNT)]).get(WAIT) == COUNT


def test_an_owner_that_is_killed_is_a_typed_error(mortal):
    owner, other = one(mortal, 0), one(mortal, 1)
    owner.make.call_one("it", COUNT, 3).get(WAIT)
    kept = owner.give.options(keep="remote").call_one("it").get(WAIT)
    other.take.call_one("theirs", kept).get(WAIT)
    os.kill(owner.pid.call_one().get(WAIT), signal.SIGKILL)
    with pytest.raises(ActorCrashed):
        owner.pid.call_one().get(WAIT)
    begin = time.monotonic()
    with pytest.raises(PeerLost):
        kept.fetch(timeout=WAIT)
    assert other.fetch_error.call_one("theirs", WAIT).get(WAIT)[0] == "PeerLost"
    assert time.monotonic() - begin < WAIT
    with pytest.raises(ActorError, match="PeerLost"):
        other.fetched.call_one(kept).get(WAIT)


def test_owners_that_are_killed_leave_nothing(six, mortal):
    """Here, and in an actor that has read from them and they from it: again and again."""
    other = one(mortal, 0)
    other.collects.call_one(False).get(WAIT)
    other.make.call_one("it", COUNT, 1).get(WAIT)
    first = ()  # what both had after the first round

    def grown():
        now = held(), other.held.call_one().get(WAIT)
        return [kinds for kinds in map(Counter.__sub__, now, first) if kinds]

    with uncollected():
        for number in range(ROUNDS):
            lose_an_owner(other, one(mortal, 1 + number % 2))
            for rank in six.crashed:
                six.replace(rank)
            first = first or (held(), other.held.call_one().get(WAIT))
            until(lambda: not grown(), lambda: f"more than at first: {grown()}")
    other.collects.call_one(True).get(WAIT)


def lose_an_owner(other, owner):
    for _ in range(2):  # what lies in private memory is copied into the pool, and mapped from there
        owner.make.call_one("it", COUNT, 3).get(WAIT)
        kept = owner.give.options(keep="remote").call_one("it").get(WAIT)
        assert float(kept.fetch().sum()) == 3 * COUNT
        assert other.fetched.call_one(kept).get(WAIT) == 3 * COUNT
    other.take.call_one("theirs", kept).get(WAIT)
    lent = other.give.options(keep="remote").call_one("it").get(WAIT)
    assert owner.fetched.call_one(lent).get(WAIT) == COUNT
    owner.take.call_one("lent", lent).get(WAIT)
    unread = owner.give.call_one("it")
    until(unread.done)
    os.kill(owner.pid.call_one().get(WAIT), signal.SIGKILL)
    with pytest.raises(ActorCrashed):
        owner.pid.call_one().get(WAIT)
    with contextlib.suppress(ActorCrashed):  # it may be here already
        unread.get(WAIT)
    with pytest.raises(PeerLost):
        kept.fetch(timeout=WAIT)
    assert other.fetch_error.call_one("theirs", WAIT).get(WAIT)[0] == "PeerLost"
    other.drop.call_one("theirs").get(WAIT)


def test_an_actor_that_is_killed_before_its_result_was_read(mortal):
    owner = one(mortal, 0)
    owner.make.call_one("it", COUNT, 3).get(WAIT)
    pid = owner.pid.call_one().get(WAIT)
    given = owner.give.call_one("it")
    assert comes(given.done)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorCrashed):
        owner.pid.call_one().get(WAIT)
    with pytest.raises(ActorCrashed) as found:
        given.get(WAIT)
    assert found.value.rank == 0


def test_an_actor_that_stands_still_costs_its_caller_the_deadline_only(mortal):
    slow = one(mortal, 2)
    begin = time.monotonic()
    slow.stop.broadcast()
    with pytest.raises(ActorCrashed):
        slow.total.options(deadline=1.0).call_one([torch.ones(COUNT)]).get(WAIT)
    assert time.monotonic() - begin < WAIT / 2


def test_a_thousand_calls_leave_nothing(trio):
    keeper = one(trio, 0)
    mine = torch.ones(MIB // 4)  # 1 MiB
    keeper.take.call_one("it", mine).get(WAIT)

    def used():
        gc.collect()
        here = tensors.here()
        here.engine.peers
        return len(here.leases), here.engine._core.pool.used_bytes, len(here.engine.regions)

    def settled():
        """What other tests had may still be on its way back."""
        first = used()
        time.sleep(1.0)
        return used() == first

    keeper._team.member(0).offers._idle = 0.1  # seconds that a room waits for the next call
    assert comes(lambda: keeper.rooms.call_one().get(WAIT) == 0)
    assert comes(settled)
    before, theirs = used(), keeper.needs.call_one().get(WAIT)
    files = keeper.descriptors.call_one().get(WAIT)
    for _ in range(250):
        keeper.total.call_one([mine]).get(WAIT)
        keeper.give.call_one("it").get(WAIT)
        keeper.give.options(keep="remote").call_one("it").get(WAIT)
        keeper.total.call_one([mine])  # nobody waits for it
    keeper.pid.call_one().get(WAIT)
    assert comes(lambda: all(now <= then for now, then in zip(used(), before)))
    assert comes(lambda: keeper.needs.call_one().get(WAIT) == theirs)
    assert keeper.descriptors.call_one().get(WAIT) <= files + 2


# --------------------------------------------------------------------------------- sharded tensors
WHOLE = torch.arange(256 * 64, dtype=torch.float32).view(256, 64)
ROWS = Layout.placed(WHOLE.shape, "float32", Mesh((4,)), [Shard(0)])
COLUMNS = Layout.placed(WHOLE.shape, "bfloat16", Mesh((2,)), [Shard(1)])


def test_an_event_loop_goes_on_while_tensors_come(six):
    ticker = six.slice(rank=1).spawn("ticker", mesh_tensor_actors.Ticker)
    pause = ticker.longest_pause.call_one(8)
    ticker.take.broadcast("large", [torch.ones(1 << 20), mesh_tensor_actors.Slow(6)])
    ticker.take.broadcast("small", 1)
    assert ticker.taken.call_one().get(WAIT) == [("large", 0), ("small", 0)]  # in their order
    assert pause.get(WAIT) < 5
    bad = [torch.ones(1 << 20), mesh_tensor_actors.Raises(StopIteration)]
    with pytest.raises(ActorError, match="take raised StopIteration"):
        ticker.take.call_one("bad", bad).get(WAIT)
    assert ticker.taken.call_one().get(WAIT) == [("large", 0), ("small", 0)]
    six.discard(ticker)


def test_a_sharded_tensor_arrives_in_another_layout(six):
    trainers = six.slice(rank=slice(4)).spawn("trainer", mesh_tensor_actors.Shards, WHOLE, ROWS)
    generators = six.slice(rank=slice(4, 6)).spawn("generator", mesh_tensor_actors.Shards)
    whole = Sharded.join(trainers.part.call().get(WAIT))
    assert whole.ranks == (0, 1, 2, 3)
    for rank, local in generators.take.call(whole.to(COLUMNS)).get(WAIT).values():
        expected = WHOLE[:, rank * 32 : (rank + 1) * 32].to(torch.bfloat16)
        assert torch.equal(local, expected)
    mine = whole.fetch(Layout.whole(WHOLE.shape, "float32"))
    assert torch.equal(mine, WHOLE)
    last = generators.slice(rank=1)
    for moved in (
        last.fetch.call_one(whole, COLUMNS).get(WAIT),
        last.take.call_one(whole.to(COLUMNS)).get(WAIT)[1],
    ):
        assert torch.equal(moved, WHOLE[:, 32:].to(torch.bfloat16))


@pytest.mark.parametrize(
    ("ranks", "first", "why"),
    [(3, 0, "3 ranks.* spawned on 2"), (1, 0, "rank 1 is none"), (1, 1, "rank 1 is none")],
)
def test_a_layout_for_other_ranks_is_refused_at_the_call(six, ranks, first, why):
    """More than there are actors; fewer; and for a view of them, whose ranks are those of all."""
    pair = six.slice(rank=slice(2)).spawn("pair", mesh_tensor_actors.Shards)
    target = Layout.placed(WHOLE.shape, "float32", Mesh((ranks,)), [Shard(0)])
    whole = Sharded.part(WHOLE, Layout.whole(WHOLE.shape, "float32"))
    with pytest.raises(LayoutError, match=why):
        pair.slice(rank=slice(first, None)).take.call(whole.to(target))
    six.discard(pair)


def test_a_part_whose_owner_is_killed_is_read_from_another(six):
    twice = Layout.placed(WHOLE.shape, "float32", Mesh((2, 2)), [Replicate(), Shard(0)])
    four = six.slice(rank=slice(4))
    trainers = four.spawn("trainer", mesh_tensor_actors.Shards, WHOLE, twice)
    whole = Sharded.join(trainers.part.call().get(WAIT))
    target = Layout.whole(WHOLE.shape, "float32")
    lost = trainers.slice(rank=0)
    os.kill(lost.pid.call_one().get(WAIT), signal.SIGKILL)
    with pytest.raises(ActorCrashed):
        lost.pid.call_one().get(WAIT)
    assert torch.equal(whole.fetch(target, timeout=WAIT), WHOLE)
    six.replace(0)


def test_parts_that_do_not_fit():
    with pytest.raises(LayoutError, match="rank 0"):
        Sharded.part(WHOLE, ROWS, rank=0)
    parts = [Sharded.part(WHOLE[:64], ROWS, 0), Sharded.part(WHOLE[:, :32], COLUMNS, 0)]
    with pytest.raises(LayoutError, match="different layouts"):
        Sharded.join(parts)
