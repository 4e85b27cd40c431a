"""publish and fetch in one process: versions, modes, layouts, who comes and goes."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from patience import until
from states import FULL, blank, filled, grid, local, same

from transport import (
    DeadlineExceeded,
    Engine,
    InvalidUse,
    LayoutError,
    Unavailable,
    VersionGone,
    VersionMoved,
    weights,
)
from transport.config import Settings
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate
from transport.sharding.state import StateLayout

SECRET = "s" * 32
WAIT = 60.0


class Trainers:
    """Four ranks of a 2x2 mesh, each an engine that publishes its shards."""

    def __init__(self, **options):
        self.layout = grid()
        self.engines = [Engine(name=f"trainer{rank}") for rank in range(4)]
        self.states = [local(self.layout, rank) for rank in range(4)]
        self.publications = [self.publish(rank, 1, **options) for rank in range(4)]

    def publish(self, rank, version, **options):
        return weights.publish(
            self.engines[rank],
            "policy",
            self.states[rank],
            version,
            layout=self.layout,
            rank=rank,
            **options,
        )

    def step(self, version, ranks=range(4)):
        for rank in ranks:
            with self.publications[rank].writing(version):
                for tensor in self.states[rank].values():
                    tensor.fill_(version)

    @property
    def addresses(self):
        return [engine.addresses[0] for engine in self.engines]

    def close(self):
        for publication in self.publications:
            publication.close()
        for engine in self.engines:
            engine.close()


@pytest.fixture(params=["snapshot", "live"])
def trainers(request):
    made = Trainers(mode=request.param)
    yield made
    made.close()


@pytest.fixture
def reader():
    with Engine(name="reader") as engine:
        yield engine


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


def test_one_fetch(trainers, reader):
    into = blank()
    done = weights.fetch(reader, "policy", into, trainers.addresses)
    assert same(into, FULL)
    assert done.version == done.attempts == 1
    assert done.nbytes == sum(tensor.nbytes for tensor in FULL.values())


def test_version_after_version(trainers, reader):
    into = blank()
    with weights.subscribe(reader, "policy", into, trainers.addresses) as subscription:
        assert subscription.version is None
        for version in range(2, 9):
            trainers.step(version)
            assert subscription.fetch(version).version == subscription.version == version
            assert same(into, filled(version))
        assert trainers.publications[0].readers == 1


def test_later_syncs_register_plan_and_connect_nothing(trainers, reader, monkeypatch):
    with weights.subscribe(reader, "policy", blank(), trainers.addresses) as subscription:
        subscription.fetch()

        def refuse(*_, **__):
            raise AssertionError("this is for the first sync")

        for module, name in (
            ("transport.sharding.execute", "plan"),
            ("transport.sharding.execute", "Binding"),
            ("transport.weights.group", "ask_all"),
            ("transport.weights.pull", "read_slots"),
        ):
            monkeypatch.setattr(f"{module}.{name}", refuse)
        monkeypatch.setattr(Engine, "register", refuse)
        monkeypatch.setattr(Engine, "prepare", refuse)
        for version in (2, 3, 4):
            trainers.step(version)
            assert subscription.fetch().version == version


@pytest.mark.parametrize("mesh", ["dp=1,tp=3", "dp=2,tp=2", "dp=1,tp=1"])
def test_another_layout_and_another_dtype(trainers, reader, mesh):
    layout = grid(mesh)
    for rank in layout.ranks:
        into = local(layout, rank, blank())
        weights.fetch(reader, "policy", into, trainers.addresses, layout=layout, rank=rank)
        assert same(into, local(layout, rank))
    wide = {"norm": torch.zeros(8, 4, 2, dtype=torch.float32)}
    weights.fetch(reader, "policy", wide, trainers.addresses)
    assert torch.equal(wide["norm"], FULL["norm"].float())


def test_a_module_and_what_its_parameters_are_replaced_by(reader):
    module = torch.nn.Linear(5, 3)
    with Engine() as owner, weights.publish(owner, "m", module, 0) as publication:
        into = torch.nn.Linear(5, 3)
        weights.fetch(reader, "m", into, owner.addresses[0])
        assert torch.equal(into.weight, module.weight)
        module.weight.data = torch.ones(3, 5)
        publication.update(1)
        weights.fetch(reader, "m", into, owner.addresses[0])
        assert (into.weight == 1).all()


def test_numpy_without_torch_tensors(reader):
    state = {"a": np.arange(12.0).reshape(3, 4), "b": np.arange(10)[::2]}
    into = {name: np.zeros_like(array) for name, array in state.items()}
    with Engine() as owner, weights.publish(owner, "n", state, 7):
        assert weights.fetch(reader, "n", into, owner.addresses[0]).version == 7
    assert all(np.array_equal(into[name], state[name]) for name in state)


def test_over_tcp():
    options = {"providers": "tcp", "secret": SECRET}
    with (
        Engine(listen="127.0.0.1:0", **options) as owner,
        Engine(**options) as reader,
        weights.publish(owner, "policy", FULL, 1) as publication,
        weights.subscribe(reader, "policy", into := blank(), owner.addresses[0]) as subscription,
    ):
        subscription.fetch()
        assert same(into, FULL)
        publication.update(2)
        assert subscription.fetch("next").version == 2


def test_an_engine_fetches_from_itself():
    with Engine() as engine, weights.publish(engine, "policy", FULL, 1):
        into = blank()
        with weights.subscribe(engine, "policy", into, engine.addresses[0]) as subscription:
            subscription.fetch()
        assert same(into, FULL)


# -------------------------------------------------------------------------------------- versions
def test_latest_is_what_all_have(trainers, reader):
    with weights.subscribe(reader, "policy", blank(), trainers.addresses) as subscription:
        subscription.fetch()  # which connects: that takes its time on a busy machine
        trainers.step(2, ranks=[0, 1, 2])
        if trainers.publications[0].mode == "live":
            with pytest.raises(DeadlineExceeded, match=r"rank 3 is at .*up to version 2"):
                subscription.fetch(deadline=0.05)
        else:
            assert subscription.fetch().version == 1
        trainers.step(2, ranks=[3])
        assert subscription.fetch().version == 2


def test_next_waits_for_a_later_one(trainers, reader):
    with weights.subscribe(reader, "policy", blank(), trainers.addresses) as subscription:
        assert subscription.fetch("next").version == 1
        with pytest.raises(DeadlineExceeded, match="no version that was asked for"):
            subscription.fetch("next", deadline=0.05)
        trainers.step(5)
        assert subscription.fetch("next").version == 5


def test_a_number_that_is_gone_and_one_that_is_to_come(trainers, reader):
    trainers.step(2)
    trainers.step(3)
    trainers.step(4)
    with weights.subscribe(reader, "policy", blank(), trainers.addresses) as subscription:
        with pytest.raises(VersionGone, match="version 1 is not kept") as caught:
            subscription.fetch(1)
        kept = ", ".join(map(str, trainers.publications[0].versions))
        assert f"kept now: {kept}. Fetch the latest" in str(caught.value)
        assert not caught.value.retryable
        assert caught.value.version == 1
        with pytest.raises(DeadlineExceeded):
            subscription.fetch(6, deadline=0.05)


@pytest.mark.parametrize("keep", [1, 3])
def test_the_last_versions_are_kept(reader, keep):
    trainers = Trainers(mode="snapshot", keep=keep)
    for version in range(2, 12):
        trainers.step(version)
    assert trainers.publications[0].versions[-keep:] == tuple(range(12 - keep, 12))
    into = blank()
    for version in range(12 - keep, 12):
        weights.fetch(reader, "policy", into, trainers.addresses, version=version)
        assert same(into, filled(version))
    trainers.close()


@pytest.mark.parametrize("wrong", ["newest", -1, 1.5, None])
def test_what_is_no_version(trainers, reader, wrong):
    with (
        weights.subscribe(reader, "policy", blank(), trainers.addresses) as subscription,
        pytest.raises(InvalidUse, match="a version"),
    ):
        subscription.fetch(wrong)


def test_versions_only_grow(trainers):
    for version in (1, 0):
        with (
            pytest.raises(InvalidUse, match="not greater than the last one, 1"),
            trainers.publications[0].writing(version),
        ):
            raise AssertionError("not reached")


# ---------------------------------------------------------------------------- reading and writing
class Interrupting(dict):
    """A progress function that does something once."""

    def __init__(self, act):
        self.act = act

    def __call__(self, done, total):
        act, self.act = self.act, lambda: None
        act()


def test_live_a_version_that_is_written_while_it_is_read_is_fetched_again(reader):
    trainers = Trainers(mode="live", patience=0.0)
    into = blank()
    with weights.subscribe(reader, "policy", into, trainers.addresses) as subscription:
        done = subscription.fetch(progress=Interrupting(lambda: trainers.step(2)))
        assert (done.version, done.attempts) == (2, 2)
        assert same(into, filled(2))
        with pytest.raises(VersionGone):
            subscription.fetch(2, progress=Interrupting(lambda: trainers.step(3)))
        assert subscription.version is None
    trainers.close()


def test_live_a_writer_waits_for_its_readers_but_not_for_ever(reader):
    trainers = Trainers(mode="live", patience=0.02)
    waited = []

    def look():
        waited.append([p.wait_for_readers(0.0) for p in trainers.publications])
        trainers.step(2)

    with weights.subscribe(reader, "policy", blank(), trainers.addresses) as subscription:
        assert subscription.fetch(progress=Interrupting(look)).attempts == 2
        assert waited == [[False] * 4]
        assert all(p.wait_for_readers(0.0) for p in trainers.publications)
    trainers.close()


def test_live_a_block_that_raises_leaves_no_version(reader):
    with Engine() as owner, weights.publish(owner, "policy", FULL, 1, mode="live") as publication:
        with pytest.raises(RuntimeError, match="of the step"), publication.writing(2):
            raise RuntimeError("of the step")
        assert publication.version is None
        with pytest.raises(DeadlineExceeded):
            weights.fetch(reader, "policy", blank(), owner.addresses[0], deadline=0.05)
        with publication.writing(2):
            pass
        assert weights.fetch(reader, "policy", blank(), owner.addresses[0]).version == 2


def test_snapshots_a_reader_keeps_what_it_reads(reader):
    """Two versions come meanwhile: the first takes the other slot, the second waits in vain."""
    trainers = Trainers(mode="snapshot", patience=0.02)
    into = blank()
    with weights.subscribe(reader, "policy", into, trainers.addresses) as subscription:
        done = subscription.fetch(progress=Interrupting(lambda: trainers.step(2)))
        assert (done.version, done.attempts) == (1, 1)
        assert same(into, FULL)
        done = subscription.fetch(
            progress=Interrupting(lambda: [trainers.step(3), trainers.step(4)])
        )
        assert (done.version, done.attempts) == (4, 2)
        assert same(into, filled(4))
    trainers.close()


def test_snapshots_with_room_a_reader_is_spared(reader):
    trainers = Trainers(mode="snapshot", keep=2, patience=30.0)
    trainers.step(2)
    trainers.step(3)
    into = blank()
    with weights.subscribe(reader, "policy", into, trainers.addresses) as subscription:
        steps = Interrupting(lambda: [trainers.step(version) for version in (4, 5, 6, 7)])
        assert subscription.fetch(2, progress=steps).attempts == 1
        assert same(into, filled(2))
        assert trainers.publications[0].versions == (2, 6, 7)
    trainers.close()


def test_at_the_deadline_the_reason_is_told(reader):
    trainers = Trainers(mode="live", patience=0.0)
    steps = iter(range(2, 10_000))

    def always(*_):
        trainers.step(next(steps))

    with (
        weights.subscribe(reader, "policy", blank(), trainers.addresses) as subscription,
        pytest.raises(VersionMoved, match="while it was being read") as caught,
    ):
        subscription.fetch(progress=always, deadline=2)
    assert caught.value.retryable
    trainers.close()


# ---------------------------------------------------------------------------------- come and go
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


def test_a_publication_names_what_it_leaves_out(reader):
    state = {"w": torch.ones(3), "lr": 0.1, "optimizer": {"betas": [0.9, 0.95]}}
    with weights.publish(reader, "policy", state, 1) as publication:
        told = "'policy' rank 0, snapshot (1 tensor; left out: lr, optimizer.betas): 1"
        assert told in repr(publication)


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


# -------------------------------------------------------------------------------------- refusals
def test_layouts_that_do_not_fit(trainers, reader):
    with pytest.raises(LayoutError, match="more"):
        weights.fetch(reader, "policy", {"more": torch.zeros(2)}, trainers.addresses)
    with pytest.raises(LayoutError, match="bias"):
        weights.fetch(reader, "policy", {"bias": torch.zeros(34)}, trainers.addresses)
    layout = StateLayout({"bias": Layout.whole((33,), "int64", 0)})
    with pytest.raises(LayoutError, match=r"bias.*has float32\[33\].*says int64\[33\]"):
        weights.fetch(
            reader, "policy", {"bias": torch.zeros(33)}, trainers.addresses, layout=layout
        )
    with pytest.raises(LayoutError, match=r"embed.*no such tensor"):
        weights.publish(reader, "policy", {}, layout=trainers.layout)


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


def test_what_cannot_be_published(reader):
    with pytest.raises(InvalidUse, match="mode"):
        weights.publish(reader, "policy", FULL, mode="copy")
    for keep in (0, True, 10_000, None):
        with pytest.raises(InvalidUse, match="keep is between"):
            weights.publish(reader, "policy", FULL, keep=keep)
    with pytest.raises(InvalidUse, match=r"live.*contiguous"):
        weights.publish(reader, "policy", {"t": torch.zeros(3, 4).t()}, mode="live")
    with pytest.raises(InvalidUse, match="state dict"):
        weights.publish(reader, "policy", [torch.zeros(3)])
    for rank in (-1, 1 << 31, True, 1.0, "0"):
        with pytest.raises(InvalidUse, match="a rank is"):
            weights.publish(reader, "policy", FULL, rank=rank)
    for name in ("", 7, "\ud800"):
        with pytest.raises(InvalidUse, match="a name"):
            weights.publish(reader, name, FULL)
    with weights.publish(reader, "policy", FULL) as publication:
        with pytest.raises(InvalidUse, match="already"):
            weights.publish(reader, "policy", FULL)
        for wrong in (publication.begin, lambda: publication.commit(1)):
            with pytest.raises(InvalidUse):
                wrong()
    with pytest.raises(InvalidUse, match="closed"):
        publication.update(1)
    with weights.publish(reader, "policy", FULL, mode="live") as publication:
        with pytest.raises(InvalidUse, match="writing"):
            publication.update(1)
        with pytest.raises(InvalidUse, match="after begin"):
            publication.commit(1)
    for sources in ([], None, 7, [b"unix:/x"]):
        with pytest.raises(InvalidUse, match="addresses"):
            weights.subscribe(reader, "policy", FULL, sources)


def test_what_the_layout_does_not_name(reader):
    state = {**FULL, "more": torch.zeros(3)}
    layout = weights.local.whole_layout(FULL, 0)
    with pytest.raises(LayoutError, match="names no more, which no reader would get"):
        weights.publish(reader, "policy", state, layout=layout)
    with weights.publish(reader, "policy", state, 1, layout=layout, partial=True):
        into = blank()
        weights.fetch(reader, "policy", into, reader.addresses)
        assert same(into, FULL)


def test_live_a_tensor_that_is_resized_is_no_version(reader):
    for size in (10, 100_000):
        state = {"w": torch.zeros(1000), "v": torch.zeros(3)}
        with weights.publish(reader, "policy", state, 1, mode="live") as publication:
            with pytest.raises(InvalidUse, match="w has other memory"), publication.writing(2):
                state["w"].resize_(size)
            assert publication.version is None


def test_live_a_tensor_that_moves_is_no_version(reader):
    state = {"w": torch.zeros(1000), "v": torch.zeros(3)}
    with weights.publish(reader, "policy", state, 1, mode="live") as publication:
        held = state["w"].data
        with pytest.raises(InvalidUse, match="w has other memory"), publication.writing(2):
            state["w"].data = torch.ones(1000)
        assert publication.version is None
        state["w"].data = held
        with publication.writing(2):
            state["w"].fill_(2)
        into = {"w": torch.ones(1000), "v": torch.ones(3)}
        assert weights.fetch(reader, "policy", into, reader.addresses).version == 2
        assert (into["w"] == 2).all()


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


def test_what_was_done_in_words(trainers, reader):
    done = weights.fetch(reader, "policy", blank(), trainers.addresses)
    assert str(done).startswith("version 1: ")
    assert " by shm (mapped" in str(done) or " by shm (" in str(done)
    assert "attempt" in str(done._replace(attempts=2))


def test_closed_by_another_thread_while_a_version_is_published(reader):
    """It is an error there, and no byte of what was given back is written."""
    for _ in range(20):
        publication = weights.publish(reader, "policy", FULL, 1)
        begun = threading.Event()

        def update(publication=publication, begun=begun):
            for version in itertools.count(2):
                publication.update(version)
                begun.set()

        with ThreadPoolExecutor(1) as pool:
            updates = pool.submit(update)
            begun.wait()
            publication.close()
            with pytest.raises(InvalidUse, match="closed"):
                updates.result()


# ---------------------------------------------------------------------------------------- memory
def test_nothing_is_left(reader):
    gc.collect()
    used = reader._core.pool.used_bytes
    with Engine() as owner:
        before = owner._core.pool.used_bytes
        for mode in ("live", "snapshot"):
            publication = weights.publish(owner, "policy", FULL, 1, mode=mode)
            with weights.subscribe(reader, "policy", blank(), owner.addresses[0]) as subscription:
                subscription.fetch()
            publication.close()
            del publication, subscription
            gc.collect()
            assert not owner._core.regions._live
        owner._core.pool.drain()
        assert owner._core.pool.used_bytes == before
    assert reader._core.pool.used_bytes == used
    assert not reader._core.regions._live


def test_memory_does_not_grow_with_versions(reader):
    with (
        Engine() as owner,
        weights.publish(owner, "policy", FULL, 0) as publication,
        weights.subscribe(reader, "policy", blank(), owner.addresses[0]) as subscription,
    ):
        subscription.fetch()
        before = owner._core.pool.used_bytes, len(owner._core.regions._live)
        for version in range(1, 1001):
            publication.update(version)
            assert subscription.fetch().version == version
        assert (owner._core.pool.used_bytes, len(owner._core.regions._live)) == before
        assert publication.nbytes == 2 * 12_736
