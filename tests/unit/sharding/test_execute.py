"""Plans carried out between two engines, against slicing done by hand."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from resharding import filled, layouts, nothing, numbered, shapes

from transport.config import Settings
from transport.engine.engine import Engine
from transport.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidUse,
    LayoutError,
    PeerLost,
    RemoteAccessError,
    StaleRegion,
)
from transport.memory.host import view
from transport.sharding.execute import Execution
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate, Shard
from transport.sharding.state import StateLayout

WAIT = 30.0


@pytest.fixture(scope="module")
def engines():
    few = Settings.from_env(reshard_staging=1 << 16, reshard_inflight=1 << 20)
    with Engine(name="theirs") as theirs, Engine(name="ours", settings=few) as ours:
        yield theirs, ours


def tensors_of(state, value, dtype):
    """rank -> name -> array of the local shape, filled with the elements of global tensors."""
    return {
        rank: {
            name: flat.astype(dtype).reshape(state.local_shapes(rank)[name][0])
            for name, flat in local.items()
        }
        for rank, local in filled(state, value).items()
    }


def handles_of(engine, tensors):
    regions = [engine.register(it) for local in tensors.values() for it in local.values()]
    each = iter(regions)
    return regions, {r: {n: next(each).remote() for n in local} for r, local in tensors.items()}


@st.composite
def states(draw):
    pair = [{}, {}]
    for number, shape in enumerate(draw(st.lists(shapes, min_size=1, max_size=3))):
        for side in pair:
            side[f"t{number}"] = draw(layouts(shape))
    return tuple(StateLayout(side) for side in pair)


def strided(random, tensors):
    """The same elements, with dimensions in another order in memory and gaps between them."""
    return {rank: {n: _strided(random, x) for n, x in it.items()} for rank, it in tensors.items()}


def _strided(random, array):
    order, gaps = random.permutation(array.ndim), random.integers(1, 3, array.ndim)
    base = np.zeros([array.shape[k] * gap for k, gap in zip(order, gaps)], array.dtype)
    made = base[(..., *[slice(None, None, gap) for gap in gaps])].transpose(np.argsort(order))
    made[...] = array
    return made


@pytest.mark.parametrize("direction", ["pull", "push"])
@settings(max_examples=40)
@given(st.data())
def test_any_layout_into_any_other(engines, direction, data):
    theirs, ours = engines
    source, target = data.draw(states())
    sources = tensors_of(source, numbered, complex)
    targets = tensors_of(target, nothing, complex)
    near, far = (targets, sources) if direction == "pull" else (sources, targets)
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    near = strided(random, near) if data.draw(st.booleans()) else near
    far = strided(random, far) if data.draw(st.booleans()) else far
    regions, handles = handles_of(theirs, far)
    for rank, local in near.items():
        with Execution(
            ours, source, target, rank, remote=handles, local=local, direction=direction
        ) as execution:
            report = execution.run(WAIT)
            assert report.bytes == execution.plan.total_bytes
            assert report.lost == ()
    for region in regions:
        region.close()
    expected = tensors_of(target, numbered, complex)
    found = near if direction == "pull" else far
    assert all(np.array_equal(found[r][n], x) for r, it in expected.items() for n, x in it.items())
    assert all(
        np.array_equal(a, b)
        for r, it in tensors_of(source, numbered, complex).items()
        for a, b in zip(it.values(), (far if direction == "pull" else near)[r].values())
    )


def pair(shape, dtypes=("float32", "float32"), source=(4,), target=(3,)):
    """Shards of rows there, of columns here."""
    rows = Layout.placed(shape, dtypes[0], Mesh(source), [Shard(0)] * len(source))
    columns = Layout.placed(shape, dtypes[1], Mesh(target), [Shard(1)] * len(target))
    return StateLayout({"w": rows}), StateLayout({"w": columns})


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("float32", "float16"),
        ("float16", "float64"),
        ("float64", "float32"),
        ("bfloat16", "float8_e4m3fn"),
        ("float32", "float8_e5m2"),
        ("int32", "float32"),
        ("int64", "int16"),
    ],
)
def test_dtypes_are_converted_on_the_way(engines, given, wanted, direction):
    """Through staging memory far smaller than the tensor."""
    theirs, ours = engines
    source, target = pair((96, 700), (given, wanted))
    whole = (torch.randn(96, 700, generator=torch.Generator().manual_seed(1)) * 100).to(
        getattr(torch, given)
    )
    expected = whole.to(getattr(torch, wanted))
    sources = {r: {"w": part.clone()} for r, part in enumerate(whole.chunk(4))}
    targets = {r: {"w": torch.zeros_like(part)} for r, part in enumerate(expected.chunk(3, 1))}
    near, far = (targets, sources) if direction == "pull" else (sources, targets)
    if direction == "pull":  # dimensions in another order in memory
        near = {r: {"w": torch.zeros_like(it["w"].T).T} for r, it in near.items()}
    regions, handles = handles_of(theirs, far)
    for rank, local in near.items():
        with Execution(
            ours, source, target, rank, remote=handles, local=local, direction=direction
        ) as execution:
            for _ in range(2):
                execution.run(WAIT)
    found = torch.cat([(near if direction == "pull" else far)[r]["w"] for r in range(3)], 1)
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    for region in regions:
        region.close()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("float32", "int32"), ("complex64", "float32"), ("int8", "bool"), ("uint8", "float8_e8m0fnu")],
)
def test_a_conversion_that_loses_more_than_digits_is_refused(engines, given, wanted):
    theirs, ours = engines
    source, target = pair((4, 6), (given, wanted), (2,), (1,))
    far = {r: {"w": torch.zeros(2, 6, dtype=getattr(torch, given))} for r in range(2)}
    regions, handles = handles_of(theirs, far)
    into = {"w": torch.zeros(4, 6, dtype=torch.uint8).view(torch.uint8)}
    if wanted != "float8_e8m0fnu":
        into = {"w": torch.zeros(4, 6, dtype=getattr(torch, wanted))}
    else:
        into = {"w": bytearray(24)}
    with pytest.raises(LayoutError, match=f"tensor 'w' is {given} at its source and {wanted}"):
        Execution(ours, source, target, 0, remote=handles, local=into)
    for region in regions:
        region.close()


def test_what_is_in_this_process_is_copied_here(engines):
    """No network, and no handle that anybody else has."""
    _, ours = engines
    source, target = pair((8, 6), target=(1,))
    whole = torch.arange(48.0).reshape(8, 6)
    regions, handles = handles_of(ours, {r: {"w": it} for r, it in enumerate(whole.split(2))})
    into = torch.zeros(8, 6)
    with Execution(ours, source, target, 0, remote=handles, local={"w": into}) as execution:
        assert execution.run(WAIT).carried == {"shm (self)": 192}
    assert torch.equal(into, whole)
    for region in regions:
        region.close()


class TestRefusals:
    """Before a byte moves, with the tensor's name."""

    @pytest.fixture(autouse=True)
    def _layouts(self, engines):
        self.theirs, self.ours = engines
        self.source, self.target = pair((8, 6), source=(2,), target=(1,))
        self.tensors = {r: {"w": np.ones((4, 6), np.float32)} for r in range(2)}
        self.regions, self.handles = handles_of(self.theirs, self.tensors)
        self.into = np.zeros((8, 6), np.float32)
        yield
        for region in self.regions:
            region.close()
        assert not self.into.any()

    def execution(self, local=None, handles=None, **more):
        local = {"w": self.into} if local is None else local
        handles = self.handles if handles is None else handles
        return Execution(
            self.ours, self.source, self.target, 0, remote=handles, local=local, **more
        )

    def register(self, x, **more):
        self.regions.append(self.theirs.register(x, **more))
        return self.regions[-1].remote()

    def test_a_local_tensor_is_missing(self):
        with pytest.raises(InvalidUse, match="local tensor 'w' of rank 0 is missing"):
            self.execution({})

    def test_a_local_tensor_is_unknown(self):
        with pytest.raises(InvalidUse, match="rank 0 has no tensor 'v' in its layout"):
            self.execution({"w": self.into, "v": self.into})

    @pytest.mark.parametrize(
        ("local", "words"),
        [
            (np.zeros((6, 8), np.float32), r"float32\[6, 8\]; in its layout it is float32\[8, 6\]"),
            (np.zeros((8, 6), np.float64), r"float64\[8, 6\]; in its layout it is float32"),
            (bytearray(191), r"has 191 bytes; float32\[8, 6\] has 192"),
        ],
    )
    def test_a_local_tensor_is_another(self, local, words):
        with pytest.raises(InvalidUse, match="the local tensor 'w' (is )?" + words):
            self.execution({"w": local})

    def test_a_local_tensor_is_read_only(self):
        view = self.into.view()
        view.flags.writeable = False
        with pytest.raises(InvalidUse, match="'w' is read-only"):
            self.execution({"w": view})

    def test_elements_of_a_local_tensor_share_bytes(self):
        with pytest.raises(InvalidUse, match="elements of the local tensor 'w' share bytes"):
            self.execution({"w": torch.zeros(1, 6).expand(8, 6)})

    def test_a_handle_is_missing(self):
        for handles in ({0: self.handles[0]}, {**self.handles, 1: {}}):
            with pytest.raises(InvalidUse, match="no handle of 'w' of rank 1"):
                self.execution(handles=handles)

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            (np.ones((6, 4), np.float32), r"is float32\[6, 4\]; in its layout it is float32\[4, 6"),
            (np.ones((4, 6), np.int32), r"is int32\[4, 6\]"),
            (bytearray(95), r"has 95 bytes; float32\[4, 6\] has 96"),
        ],
    )
    def test_a_handle_is_of_another_tensor(self, other, words):
        handles = {**self.handles, 1: {"w": self.register(other)}}
        with pytest.raises(InvalidUse, match="the handle of 'w' of rank 1 " + words):
            self.execution(handles=handles)

    def test_a_handle_allows_too_little(self):
        handles = {**self.handles, 0: {"w": self.register(self.tensors[0]["w"], access="write")}}
        with pytest.raises(RemoteAccessError, match="'w' of rank 0 allows to write only"):
            self.execution(handles=handles)

    def test_a_handle_is_none(self):
        with pytest.raises(InvalidUse, match="'w' of rank 1: the remote side must be a RemoteReg"):
            self.execution(handles={**self.handles, 1: {"w": self.tensors[1]["w"]}})

    def test_there_is_no_such_direction(self):
        with pytest.raises(InvalidUse, match="pull"):
            self.execution(direction="sideways")

    def test_the_deadline_has_passed(self):
        with self.execution() as execution, pytest.raises(DeadlineExceeded, match="0 of 192"):
            execution.run(0)

    def test_it_is_closed(self):
        with self.execution() as execution:
            pass
        with pytest.raises(InvalidUse, match="closed"):
            execution.run(WAIT)


# --------------------------------------------------------------------------------- sources are lost
MANY = (512, 2048)  # 4 MiB: some hundred parcels of `ours`


@pytest.fixture
def replicas(engines):
    """Four ranks have the rows, and four others on another engine the same."""
    layout = Layout.placed(MANY, "float32", Mesh((2, 4)), [Replicate(), Shard(0)])
    columns = Layout.placed(MANY, "float32", Mesh((2,)), [Shard(1)])
    whole = torch.randn(MANY, generator=torch.Generator().manual_seed(2))
    shards = [shard.clone() for shard in whole.chunk(4)]
    with Engine(name="first") as first, Engine(name="second") as second:
        kept, handles = [], {}
        for engine, ranks in ((first, range(4)), (second, range(4, 8))):
            regions, more = handles_of(engine, {r: {"w": shards[r % 4]} for r in ranks})
            kept.append(regions)
            handles.update(more)
        yield {
            "engines": (first, second),
            "regions": kept,
            "handles": handles,
            "states": (StateLayout({"w": layout}), StateLayout({"w": columns})),
            "whole": whole,
        }


def pulling(engines, replicas, **more):
    into = torch.zeros(MANY[0], MANY[1] // 2)
    made = Execution(
        engines[1], *replicas["states"], 1, remote=replicas["handles"], local={"w": into}, **more
    )
    return made, into, replicas["whole"].chunk(2, 1)[1]


def test_a_lost_source_is_replaced_on_the_way(engines, replicas):
    execution, into, expected = pulling(engines, replicas)
    with execution:
        before = execution.run(WAIT)
        into.zero_()
        told = []

        def progress(done, total):
            told.append((done, total))
            if len(told) == 1:
                replicas["engines"][1].close()

        report = execution.run(WAIT, progress)
        assert torch.equal(into, expected)
        assert before.lost == ()
        assert set(report.lost) <= {4, 5, 6, 7}
        assert report.lost
        assert report.bytes < 2 * before.bytes
        assert told[-1] == (before.bytes, before.bytes)
        # From now on the others do it all, planned and prepared once: after a run that misses those
        # who had given all when their engine was closed, if that was seen at their regions.
        assert execution.without >= set(report.lost)
        execution.run(WAIT)
        assert execution.without >= {4, 5, 6, 7}
        into.zero_()
        again = execution.run(WAIT)
        assert (again.ranks, again.lost) == ((0, 1, 2, 3), ())
        assert again.bytes == before.bytes
        assert torch.equal(into, expected)


def test_a_wary_run_keeps_nothing_of_a_lost_source(engines):
    theirs, ours = engines
    names, shape = [f"w{i}" for i in range(128)], (64, 64)
    both = Layout.placed(shape, "int32", Mesh((2,)), [Replicate()])
    source = StateLayout(dict.fromkeys(names, both))
    target = StateLayout(dict.fromkeys(names, Layout.whole(shape, "int32")))
    regions, handles = handles_of(
        theirs,
        {r: {name: np.full(shape, i, np.int32) for i, name in enumerate(names)} for r in (0, 1)},
    )
    into = {name: np.full(shape, -1, np.int32) for name in names}
    lost = []
    with Execution(ours, source, target, 0, remote=handles, local=into) as execution:
        run = execution.begin(WAIT, wary=True)

        def progress(done, total):
            if not lost:
                (first,) = run._landed
                lost.append(first.rank)
                for region in regions[first.rank * len(names) : (first.rank + 1) * len(names)]:
                    region.close()
                for i in range(len(first.cut)):
                    into[execution._binding.near_name(first.cut.take(slice(i, i + 1)))][:] = -1

        report = run.wait(progress)
    assert report.lost == tuple(lost)
    assert all((into[name] == i).all() for i, name in enumerate(names))
    for region in regions:
        region.close()


def test_a_run_is_one_call_into_c(engines, replicas, monkeypatch):
    many = replicas["engines"][0]  # with the default limits
    into = torch.zeros(MANY[0], MANY[1] // 2)
    states, handles = replicas["states"], replicas["handles"]
    with Execution(many, *states, 1, remote=handles, local={"w": into}) as execution:
        execution.run(WAIT)
        into.zero_()
        monkeypatch.setattr("transport.sharding.run.Run.launch", None)
        monkeypatch.setattr("transport.sharding.run.Run._next_done", None)
        report = execution.run(WAIT)
        assert report.bytes == sum(report.carried.values()) == into.nbytes
        assert torch.equal(into, replicas["whole"].chunk(2, 1)[1])


def test_a_region_that_is_closed_is_replaced(engines, replicas):
    execution, into, expected = pulling(engines, replicas)
    with execution:
        used = next(iter(execution.plan.bytes_by_rank))
        replicas["regions"][used // 4][used % 4].close()
        report = execution.run(WAIT)
        assert report.lost == (used,)
        assert used not in report.ranks
        assert report.bytes == execution.plan.total_bytes
        assert torch.equal(into, expected)


def test_nobody_is_left(engines, replicas):
    execution, _, _ = pulling(engines, replicas)
    with execution:
        for regions in replicas["regions"]:
            regions[2].close()
        with pytest.raises(StaleRegion, match=r"source rank [26] was lost with 'w' .*'w'"):
            execution.run(WAIT)
        for engine in replicas["engines"]:
            engine.close()
        with pytest.raises((PeerLost, StaleRegion), match="'w'"):  # which is seen first
            execution.run(WAIT)


def test_ranks_that_are_not_to_be_used(engines, replicas):
    execution, into, expected = pulling(engines, replicas, without=frozenset(range(4)))
    with execution:
        assert execution.run(WAIT).ranks == (4, 5, 6, 7)
        assert torch.equal(into, expected)


def test_a_lost_target_is_not_replaced(engines):
    theirs, ours = engines
    source, target = pair((8, 6), source=(1,), target=(2,))
    tensors = {r: {"w": np.zeros((8, 3), np.float32)} for r in range(2)}
    regions, handles = handles_of(theirs, tensors)
    mine = {"w": np.ones((8, 6), np.float32)}
    with Execution(
        ours, source, target, 0, remote=handles, local=mine, direction="push"
    ) as execution:
        execution.run(WAIT)
        regions[1].close()
        with pytest.raises(StaleRegion, match="target rank 1 was lost with 'w'"):
            execution.run(WAIT)
    regions[0].close()


# ------------------------------------------------------------------------------ ended, and repeated
def test_whatever_ends_a_run_another_may_follow(engines, replicas):
    execution, into, expected = pulling(engines, replicas)

    def interrupt(done, total):
        raise KeyboardInterrupt

    def cancel(done, total):
        execution.cancel()

    with execution:
        with pytest.raises(KeyboardInterrupt):
            execution.run(WAIT, interrupt)
        with pytest.raises(Cancelled):
            execution.run(WAIT, cancel)
        with pytest.raises(DeadlineExceeded):
            execution.run(1e-9)
        into.zero_()
        assert execution.run(WAIT).bytes == into.nbytes
        assert torch.equal(into, expected)


def test_one_run_at_a_time(engines, replicas):
    execution, into, expected = pulling(engines, replicas)
    with execution:
        run = execution.start(WAIT)
        with pytest.raises(InvalidUse, match="not over"):
            execution.start(WAIT)
        run.wait()
        assert torch.equal(into, expected)
        execution.start(WAIT).cancel()
        execution.cancel()


def test_a_run_that_never_began_holds_up_no_other(engines, replicas):
    """As where Ctrl-C comes before whoever made it could do anything with it."""
    execution, into, expected = pulling(engines, replicas)
    with execution:
        lost = execution.begin(WAIT)
        assert not lost.under_way
        assert not lost.over
        execution.run(WAIT)
        assert torch.equal(into, expected)
        into.zero_()
        begun = execution.begin(WAIT)
        begun.launch()
        assert begun.under_way
        begun.abandon()
        assert not begun.under_way
        execution.run(WAIT)
        assert torch.equal(into, expected)


def test_a_cancelled_run_that_nobody_waits_for_lets_the_memory_go(engines, replicas):
    execution, into, _ = pulling(engines, replicas)
    execution.start(WAIT)
    execution.close()
    assert execution.closed
    assert view(into).nbytes == into.nbytes


def calls_of(execution):
    """How many calls Python makes in a run."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        execution.run(WAIT)
    finally:
        sys.setprofile(None)
    return count


def test_a_repeated_run_has_no_python_for_a_tensor(engines):
    """Nor plans, registers or prepares: as many calls for 500 tensors as for 5."""
    theirs, ours = engines
    counts = []
    for many in (5, 500):
        whole = torch.arange(many * 12.0).reshape(many, 4, 3)
        layouts = pair((4, 3), source=(1,), target=(1,))
        names = [f"t{i}" for i in range(many)]
        source, target = (StateLayout(dict.fromkeys(names, it["w"].layout)) for it in layouts)
        far = dict(zip(names, whole.unbind()))
        into = {name: torch.zeros(4, 3) for name in names}
        regions, handles = handles_of(theirs, {0: far})
        with Execution(ours, source, target, 0, remote=handles, local=into) as execution:
            execution.run(WAIT)
            counts.append(min(calls_of(execution) for _ in range(5)))
        assert all(torch.equal(into[name], far[name]) for name in names)
        for region in regions:
            region.close()
    assert counts[1] <= counts[0] + 20


def test_a_tensor_that_was_resized_is_refused(engines):
    theirs, ours = engines
    source, target = pair((8, 6), source=(1,), target=(1,))
    regions, handles = handles_of(theirs, {0: {"w": torch.ones(8, 6)}})
    into = torch.zeros(8, 6)
    with Execution(ours, source, target, 0, remote=handles, local={"w": into}) as execution:
        execution.run(WAIT)
        into.resize_(1000, 6)
        with pytest.raises(InvalidUse, match="resized"):
            execution.run(WAIT)
    regions[0].close()
