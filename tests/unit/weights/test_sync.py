"""publish and fetch in one process: versions, modes, layouts, who comes and goes."""

from __future__ import annotations

import gc
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from states import FULL, blank, filled, grid, local, same
from trainers import Trainers

from transport import (
    DeadlineExceeded,
    Engine,
    InvalidUse,
    LayoutError,
    VersionGone,
    VersionMoved,
    weights,
)
from transport.sharding.layout import Layout
from transport.sharding.state import StateLayout

SECRET = "s" * 32
WAIT = 60.0


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


def test_a_publication_names_what_it_leaves_out(reader):
    state = {"w": torch.ones(3), "lr": 0.1, "optimizer": {"betas": [0.9, 0.95]}}
    with weights.publish(reader, "policy", state, 1) as publication:
        told = "'policy' rank 0, snapshot (1 tensor; left out: lr, optimizer.betas): 1"
        assert told in repr(publication)


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
