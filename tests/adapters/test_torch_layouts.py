"""What torch itself has sharded, over gloo: where its elements lie, and how they are resharded.

The local tensors are torch's. What the layouts say of them is compared with slicing by hand, and
what our engines move with what `redistribute`, `full_tensor` and distributed checkpoints give.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import shards

from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate, Shard, StridedShard
from transport.sharding.state import StateLayout

pytest.importorskip("torch")
from torch_world import run_ranks

pytestmark = pytest.mark.slow

SHAPES = [(8, 6), (7, 5), (3, 9), (1, 1), (0, 4), (13,)]
R, S0, S1, SS0 = ("R",), ("S", 0), ("S", 1), ("SS", 0, 2)
ONE, TWO = [(R,), (S0,), (S1,)], [*itertools.product([R, S0, S1], repeat=2), (SS0, S0), (SS0, S1)]
THREE = [(S0, S0, S0), (S1, R, S0), (("SS", 0, 4), SS0, S0), (SS0, S1, S0), (R, SS0, S0)]
BLOCKS = [(10, 5), (6, 5)]


def _cases(meshes):
    """{name: (shape, mesh, placements)}; a mesh's placements are tried on all shapes they fit."""
    return {
        f"{shape} on {mesh} {places}": (shape, mesh, places)
        for mesh, choices in meshes.items()
        for places, shape in itertools.product(choices, SHAPES)
        if all(len(place) < 2 or place[1] < len(shape) for place in places)
    }


def _moves(pairs):
    """{name: (shape, source, target)}, with a shape per pair, in turn."""
    shapes = itertools.cycle(((7, 5), (3, 9), (8, 6)))
    return {f"{shape} {a} to {b}": (shape, a, b) for (a, b), shape in zip(pairs, shapes)}


def _all_pairs(meshes):
    """Of (mesh, placements)."""
    choices = [(mesh, places) for mesh, those in meshes.items() for places in those]
    return itertools.product(choices, repeat=2)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    checkpoint = str(tmp_path_factory.mktemp("four"))
    jobs = {
        "moved": ("moved", _moves(_all_pairs({(4,): ONE, (2, 2): TWO})), checkpoint),
        "dtensors": ("dtensors", _cases({(4,): ONE, (2, 2): TWO})),
        "fsdp2 over tp": ("fsdp2_over_tp", (2, 2), BLOCKS),
        "published": ("published", (9, 7)),
        "fsdp1": ("fsdp1", BLOCKS, "FULL_SHARD", False, False),
        "fsdp1, its parameters kept and tied": ("fsdp1", BLOCKS, "FULL_SHARD", True, True),
        "fsdp1's state dict": ("fsdp1_state_dict", BLOCKS),
        "fsdp1, not sharded": ("fsdp1", BLOCKS, "NO_SHARD", True, False),
    }
    return run_ranks(4, "torch_ranks", jobs)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    checkpoint = str(tmp_path_factory.mktemp("eight"))
    jobs = {
        "moved": ("moved", _moves(_all_pairs({(8,): ONE, (2, 2, 2): THREE})), checkpoint),
        "dtensors": ("dtensors", _cases({(2, 2, 2): THREE, (2, 4): TWO})),
        "hsdp over tp": ("fsdp2_over_tp", (2, 2, 2), BLOCKS),
    }
    return run_ranks(8, "torch_ranks", jobs)


def _check(results):
    """Every rank made the same layouts, and they lead to every rank's own local tensors."""
    encoded, _, *about = results[0]
    state = StateLayout.decode(encoded)
    assert all(other[0] == encoded for other in results)
    for name, entry in state.items():
        expected = shards.filled(entry.layout, about[0][name] if about else None)
        for rank, (_, locals_, *_) in enumerate(results):
            assert (entry.tensor in locals_) == (rank in expected), (name, rank)
            if rank not in expected:
                continue
            local = locals_[entry.tensor]
            mine = expected[rank] != shards.NOBODY
            assert local.shape == expected[rank].shape, (name, rank)
            assert (local[mine] == expected[rank][mine]).all(), (name, rank)
    return state


@pytest.mark.parametrize(("world", "job"), [("four", "dtensors"), ("eight", "dtensors")])
def test_dtensors(world, job, request):
    state = _check(request.getfixturevalue(world)[job])
    assert len(state) > 50


@pytest.mark.parametrize(("world", "job"), [("four", "fsdp2 over tp"), ("eight", "hsdp over tp")])
def test_fsdp2_over_tensor_parallelism(world, job, request):
    results = request.getfixturevalue(world)[job]
    _check(results)
    assert "_StridedShard" in results[0][3]


def test_weights_take_the_layout_from_dtensors(four):
    assert four["published"] == [(1, True)] * 4


@pytest.mark.parametrize("world", ["four", "eight"])
def test_our_engines_move_what_torch_moves(world, request):
    """Every tensor of a state from one mesh and placements to others, pulled by one plan a rank."""
    compared = Counter()
    for rank, tensors in enumerate(request.getfixturevalue(world)["moved"]):
        for name, (ours, redistributed, loaded) in tensors.items():
            for theirs in (redistributed, loaded):
                compared[theirs is loaded, theirs is not None] += 1
                assert theirs is None or ours.shape == theirs.shape, (name, rank)
                assert theirs is None or (ours == theirs).all(), (name, rank)
    assert min(compared[False, True], compared[True, True]) > 300


@pytest.mark.parametrize(
    "job", ["fsdp1", "fsdp1, its parameters kept and tied", "fsdp1, not sharded"]
)
def test_fsdp1(four, job):
    state = _check(four[job])
    assert len(state) == 8
    assert {entry.tensor for entry in state.values()} == {"_flat_param", "1._flat_param"}


def test_the_sharded_state_dict_of_fsdp1(four):
    assert len(_check(four["fsdp1's state dict"])) == 8


def test_flat_parameters_are_covered_once(four):
    """What the layouts say of a flat parameter's elements are all of them, but for the padding."""
    state = StateLayout.decode(four["fsdp1"][0][0])
    held = sum(int(e.layout.pieces().size.prod(axis=1).sum()) for e in state.values())
    assert held == sum(e.layout.numel for e in state.values())


@pytest.mark.parametrize("mesh", [(5,), (3, 4), (4, 3), (2, 3, 4)])
def test_offsets_are_those_that_torch_computes(mesh):
    from torch.distributed.tensor import placement_types as torchs
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset as compute

    theirs = {
        Replicate(): torchs.Replicate(),
        Shard(0): torchs.Shard(0),
        Shard(1): torchs.Shard(1),
        StridedShard(0, 4): torchs._StridedShard(0, split_factor=4),
        StridedShard(1, 3): torchs._StridedShard(1, split_factor=3),
    }
    ranks = Mesh(mesh)
    for places, shape in itertools.product(
        itertools.product(theirs, repeat=len(mesh)), [(24, 12), (17, 5), (2, 30)]
    ):
        layout = Layout.placed(shape, "float32", ranks, [theirs[place] for place in places])
        assert layout == Layout.placed(shape, "float32", ranks, places)
        for coordinate in (
            (0,) * len(mesh),
            tuple(n - 1 for n in mesh),
            tuple(n // 2 for n in mesh),
        ):
            rank = int(ranks.ranks[coordinate])
            local, offset = compute(shape, mesh, coordinate, [theirs[place] for place in places])
            assert layout.local_shape(rank) == tuple(local)
            pieces = layout.pieces_of(rank)
            assert not len(pieces) or tuple(pieces.offset[0]) == tuple(offset)


def test_a_partial_tensor_is_refused():
    from torch.distributed.tensor import Partial

    from transport.errors import LayoutError

    with pytest.raises(LayoutError, match="not summed up"):
        Layout.placed((4,), "float32", Mesh((2,)), [Partial()])
