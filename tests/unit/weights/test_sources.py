"""Sources that come, go, come back and disagree, and the seats of readers at them."""

from __future__ import annotations

import gc
import time

import pytest
import torch
from patience import until
from states import FULL, blank, filled, same
from trainers import Trainers

from transport import (
    Engine,
    InvalidUse,
    LayoutError,
    Unavailable,
    weights,
)
from transport.config import Settings
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate, Shard
from transport.sharding.state import StateLayout

SECRET = "s" * 32
WAIT = 60.0


@pytest.fixture
def replicas():
    """Two ranks that hold the same, which is more than one parcel."""
    layout = StateLayout({"w": Layout.placed((1 << 20,), "int32", Mesh((2,)), [Replicate()])})
    engines = [Engine(name=f"replica{rank}") for rank in range(2)]
    tensors = [torch.zeros(1 << 20, dtype=torch.int32) for _ in engines]
    made = [
        weights.publish(engine, "w", {"w": it}, 1, layout=layout, rank=rank, mode="live")
        for rank, (engine, it) in enumerate(zip(engines, tensors))
    ]
    yield engines, tensors, made
    for one in (*made, *engines):
        one.close()


def test_a_source_that_is_lost_on_the_way_is_done_without(replicas):
    engines, tensors, publications = replicas
    for publication, tensor in zip(publications, tensors):
        with publication.writing(2):
            tensor.copy_(torch.arange(1 << 20))
    few = Settings.from_env(reshard_inflight=1 << 20)
    into = torch.zeros(1 << 20, dtype=torch.int32)
    with Engine(name="reader", settings=few) as reader:
        addresses = [engine.addresses[0] for engine in engines]
        with weights.subscribe(reader, "w", {"w": into}, addresses) as subscription:
            seen = []

            def progress(done, total):
                seen.append(done)
                if len(seen) == 1:
                    engines[1].close()

            done = subscription.fetch(progress=progress)
            assert (done.version, done.attempts) == (2, 1)
            assert torch.equal(into, torch.arange(1 << 20, dtype=torch.int32))
            assert publications[0].readers == 1
            with publications[0].writing(3, patience=WAIT):  # no seat is taken
                tensors[0].fill_(3)
            done = subscription.fetch(3)
            assert done.attempts <= 2
            assert (into == 3).all()


def test_a_source_that_restarts(trainers, reader):
    into = blank()
    with weights.subscribe(reader, "policy", into, trainers.addresses) as subscription:
        subscription.fetch()
        trainers.publications[1].close()
        trainers.step(2, ranks=[0, 2, 3])
        trainers.publications[1] = trainers.publish(1, 2, mode=trainers.publications[0].mode)
        trainers.states[1]["bias"].fill_(2)
        done = subscription.fetch(2)
        assert done.attempts == 2


def test_a_source_that_is_gone_is_done_without(trainers, reader):
    """The mesh has every shard twice."""
    into = blank()
    with weights.subscribe(reader, "policy", into, trainers.addresses) as subscription:
        subscription.fetch()
        trainers.engines[0].close()
        trainers.publications[0].close()
        trainers.step(2, ranks=[1, 2, 3])
        assert subscription.fetch().version == 2
        assert same(into, filled(2))
        trainers.engines[2].close()
        with pytest.raises(Unavailable, match=r"'embed'|'bias'|'norm'"):
            subscription.fetch(deadline=0.2)


def test_a_source_that_comes_back_is_taken_up(reader, monkeypatch):
    """While its replica does its work, nobody waits for it."""
    monkeypatch.setattr("transport.weights.group.SEEK_EVERY", 0.0)
    trainers = Trainers(mode="snapshot")
    trainers.publications[3].close()
    into = blank()
    with weights.subscribe(reader, "policy", into, trainers.addresses) as subscription:
        subscription.fetch()
        assert subscription._group.missing == {3}
        trainers.publications[3] = trainers.publish(3, 1)
        while subscription._group.missing:
            assert subscription.fetch().attempts == 1
        assert same(into, FULL)
    trainers.close()


def test_nobody_there(reader):
    with Engine() as other:
        with pytest.raises(Unavailable, match=r"nobody publishes 'policy' .* longer deadline"):
            weights.fetch(reader, "policy", blank(), other.addresses[0], deadline=1)
        with weights.publish(other, "other", FULL, 1), pytest.raises(Unavailable, match="policy"):
            weights.fetch(reader, "policy", blank(), other.addresses[0], deadline=1)


def test_seats_are_given_back(trainers):
    publication = trainers.publications[2]
    readers = [Engine() for _ in range(3)]
    open_ones = [weights.subscribe(e, "policy", blank(), trainers.addresses) for e in readers]
    for subscription in open_ones:
        subscription.fetch()
    assert publication.readers == 3
    open_ones[0].close()
    open_ones[1].close()
    readers[0].connect(trainers.addresses[2])  # comes after the notice, and is answered
    readers[2].close()
    gc.collect()
    weights.fetch(readers[1], "policy", blank(), trainers.addresses)
    until(lambda: publication.readers <= 2)  # who closed is heard of in the background
    for engine in readers:
        engine.close()


def test_a_seat_of_whoever_had_no_answer_is_given_back(trainers, reader, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    subscription = weights.subscribe(reader, "policy", blank(), trainers.addresses)
    monkeypatch.setattr("transport.weights.card.offer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        subscription.fetch()
    assert trainers.publications[0].readers == 1
    subscription.close()
    end = time.monotonic() + WAIT
    while any(it.readers for it in trainers.publications):
        assert time.monotonic() < end


def test_a_rank_that_the_layout_does_not_have(trainers, reader):
    with pytest.raises(LayoutError, match="gives rank 99 nothing"):
        weights.publish(reader, "policy", trainers.states[0], layout=trainers.layout, rank=99)
    with pytest.raises(LayoutError, match="gives rank 99 nothing"):
        weights.fetch(
            reader, "policy", blank(), trainers.addresses, layout=trainers.layout, rank=99
        )
    with pytest.raises(InvalidUse, match="not a Layout"):
        weights.publish(reader, "policy", FULL, layout=Layout.whole((33,), "int64", 0))
    with pytest.raises(Unavailable, match="no address given is that rank's"):
        weights.fetch(reader, "policy", blank(), trainers.addresses[:1], deadline=0.05)


def test_different_layouts_and_ranks_twice(trainers, reader):
    name, addresses = "policy", [*trainers.addresses, reader.addresses[0]]
    with (
        weights.publish(reader, name, FULL, 1),
        pytest.raises(LayoutError, match="different layouts"),
    ):
        weights.fetch(reader, name, blank(), addresses, deadline=0.3)
    state = trainers.states[3]
    with (
        weights.publish(reader, name, state, 1, layout=trainers.layout, rank=3),
        pytest.raises(LayoutError, match=r"both .* publish rank 3"),
    ):
        weights.fetch(reader, name, blank(), addresses, deadline=0.3)


def test_a_reader_needs_only_those_that_have_what_it_reads(reader):
    rows, halves = (
        StateLayout({"w": Layout.placed((8, 4), "float32", Mesh((n,)), [Shard(0)])}) for n in (4, 2)
    )
    whole = torch.arange(32.0).view(8, 4)
    engines = [Engine(name=f"row{rank}") for rank in range(4)]
    made = [
        weights.publish(it, "w", {"w": shard.clone()}, 1, layout=rows, rank=rank)
        for rank, (it, shard) in enumerate(zip(engines, whole.chunk(4)))
    ]
    made[0].close()
    addresses = [it.addresses[0] for it in engines]
    into = torch.zeros(4, 4)
    weights.fetch(reader, "w", {"w": into}, addresses, layout=halves, rank=1, deadline=WAIT)
    assert torch.equal(into, whole[4:])
    with pytest.raises(Unavailable, match="needed by target rank 0 once source rank 0 may not"):
        weights.fetch(reader, "w", {"w": into}, addresses, layout=halves, rank=0, deadline=0.5)
    for one in (*made, *engines):
        one.close()
