"""Layouts against slicing done by hand: the pieces say where every element of a rank lies."""

from __future__ import annotations

import numpy as np
import pytest
import shards

from transport.errors import LayoutError
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate, Shard, StridedShard
from transport.sharding.state import StateLayout

NOBODY = shards.NOBODY


@pytest.mark.parametrize(
    ("shape", "mesh", "placements"),
    [
        ((10, 3), Mesh((4,)), [Shard(0)]),
        ((3, 10), Mesh((8,)), [Shard(1)]),
        ((2,), Mesh((5,)), [Shard(-1)]),
        ((10, 9), Mesh((2, 4)), [Shard(0), Shard(0)]),
        ((10, 9), Mesh((2, 4)), [StridedShard(0, 4), Shard(0)]),
        ((17, 9), Mesh((2, 2), ranks=[[7, 1], [0, 3]]), [StridedShard(0, 3), Shard(1)]),
        ((17, 9), Mesh((3, 2, 2)), [StridedShard(0, 4), StridedShard(0, 2), Shard(0)]),
        ((0, 4), Mesh((3,)), [Shard(0)]),
        ((), Mesh((2,)), [Replicate()]),
    ],
)
def test_placed(shape, mesh, placements):
    layout = Layout.placed(shape, "float32", mesh, placements)
    tensor = np.arange(layout.numel).reshape(shape)
    found = shards.filled(layout)
    for place in np.ndindex(mesh.shape):
        expected = shards.placed(tensor, mesh, placements, place)
        local = found[int(mesh.ranks[place])]
        assert local.shape == expected.shape
        assert (local == expected).all()


def test_fsdp_over_tp_is_one_piece_per_rank():
    layout = Layout.placed((64, 8), "float32", Mesh((4, 8)), [StridedShard(0, 8), Shard(0)])
    pieces = layout.pieces()
    assert len(pieces) == 32
    assert pieces.of(9).offset.tolist() == [[10, 0]]  # dp 1 of tp 1


def test_flat():
    layout = Layout.flat(
        (3, 4, 5),
        "bfloat16",
        [0, 1, 2],
        first=[0, 7, 33],
        count=[7, 26, 27],
        numel=40,
        start=[3, 0, 0],
    )
    found = shards.filled(layout)
    assert (found[0] == [NOBODY] * 3 + list(range(7)) + [NOBODY] * 30).all()
    assert (found[1][:26] == range(7, 33)).all()
    assert (found[2][:27] == range(33, 60)).all()


def test_a_flat_scalar():
    layout = Layout.flat((), "float32", [0, 1], first=0, count=[0, 1], numel=4, start=2)
    assert shards.filled(layout)[1].tolist() == [NOBODY, NOBODY, 0, NOBODY]


def test_a_padded_vocabulary():
    """10 words padded to 12 over 3 ranks: nobody's data is in the last two rows."""
    padded = Layout.placed((12, 2), "float32", Mesh((3,)), [Shard(0)])
    vocabulary = padded.part((0, 0), (10, 2))
    assert vocabulary.local_shape(2) == (4, 2)
    assert shards.filled(vocabulary)[2].tolist() == [[16, 17], [18, 19], [NOBODY] * 2, [NOBODY] * 2]


def test_explicit_boxes_lie_where_they_are_said_to():
    layout = Layout.explicit(
        (4, 4),
        "float32",
        {0: [((0, 0), (2, 4))], 3: [((2, 0), (2, 2), (0, 2)), ((2, 2), (2, 2), (0, 0))], 5: []},
        {3: (3, 4), 5: (7, 7)},
    )
    assert layout.ranks.tolist() == [0, 3, 5]
    assert shards.filled(layout)[3].tolist() == [[10, 11, 8, 9], [14, 15, 12, 13], [NOBODY] * 4]
    assert len(layout.pieces_of(5)) == 0
    assert layout.local_shape(5) == (7, 7)


def test_interleaved_qkv():
    """Two ranks hold [q0 k0 v0] and [q1 k1 v1]; as one tensor that is q0 k0 v0 q1 k1 v1."""
    fused = Layout.placed((16, 2), "float32", Mesh((2,)), [Shard(0)])
    whole = np.arange(32).reshape(2, 8, 2)
    for start, length in ((0, 4), (4, 2), (6, 2)):
        part = fused.interleaved(0, start, length, 8)
        expected = whole[:, start : start + length].reshape(-1, 2)
        held = shards.gathered(part, shards.filled(fused))
        assert (held[0][:length] == expected[:length]).all()
        assert (held[1][length:] == expected[length:]).all()
        assert (held[0][length:] == NOBODY).all()


def test_stacked_qkv_with_shared_heads():
    """Four ranks, two heads of k: ranks 0 and 1 have the first. Each rank has q, then k, then v."""
    mesh = Mesh((2, 2), ("kv", "copies"))
    q = Layout.placed((8, 3), "float32", mesh, [Shard(0), Shard(0)])
    k = Layout.placed((2, 3), "float32", mesh, [Shard(0), Replicate()])
    members = Layout.stacked((q, k, k))
    assert {member.local_shape(1) for member in members} == {(4, 3)}
    q1, k1, v1 = (member.pieces_of(1) for member in members)
    assert (q1.offset.tolist(), q1.start.tolist()) == ([[2, 0]], [0])
    assert (k1.offset.tolist(), k1.start.tolist()) == ([[0, 0]], [6])
    assert (v1.offset.tolist(), v1.start.tolist()) == ([[0, 0]], [9])


def test_an_expert_of_a_tensor_of_experts():
    experts = Layout.placed((6, 4, 2), "float32", Mesh((3,)), [Shard(0)])
    third = experts.select(0, 3)
    assert third.shape == (4, 2)
    assert third.pieces().rank.tolist() == [1]
    assert third.local_shape(1) == (2, 4, 2)
    held = shards.gathered(third, shards.filled(experts))
    assert (held[1] == np.arange(24, 32).reshape(4, 2)).all()


def test_a_union_of_meshes_that_know_nothing_of_each_other():
    one = Layout.placed((4,), "float32", Mesh((2,)), [Shard(0)])
    two = Layout.placed((4,), "float32", Mesh((2,), ranks=[5, 3]), [Shard(0)])
    both = Layout.union([one, two])
    assert both.ranks.tolist() == [0, 1, 3, 5]
    assert both.pieces_of(3).offset.tolist() == [[2]]
    with pytest.raises(LayoutError, match="ranks 0, 1"):
        Layout.union([one, Layout.placed((4,), "float32", Mesh((2,)), [Replicate()])])


def test_layouts_are_equal_by_content():
    make = [lambda: Layout.placed((4, 4), "float32", Mesh((2,)), [Shard(-1)])] * 2
    first, second = (build() for build in make)
    assert first == second
    assert hash(first.part((0, 0), (2, 2))) == hash(second.part((0, 0), (2, 2)))
    assert first != Layout.placed((4, 4), "float32", Mesh((2,)), [Shard(0)])
    assert first.part((1, 1), (3, 3)).part((1, 0), (1, 1)) == second.part((2, 1), (1, 1))


explicit, placed, flat = Layout.explicit, Layout.placed, Layout.flat
four = Layout.whole((4,), "uint8")
two_boxes = {2: [((0, 0), (2, 2)), ((2, 2), (2, 2), (1, 1))]}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: explicit((4,), "int8", {0: [((0,), (4,))], 3: [((2,), (3,))]}), "rank 3 leaves"),
        (
            lambda: explicit((4,), "int8", {1: [((0,), (4,))]}, {1: (3,)}),
            "rank 1 leaves the r",
        ),
        (lambda: explicit((4,), "int8", {1: [((0,), (2,)), ((2,), (2,))]}), "shape of rank 1"),
        (lambda: explicit((4, 4), "int8", two_boxes, {2: (4, 4)}), "rank 2 overlap"),
        (lambda: explicit((4,), "int8", {-1: [((0,), (4,))]}), "ranks are >= 0"),
        (lambda: explicit((4,), "int8", {1: [((0, 0), (4, 1))]}), "dimensions"),
        (lambda: placed((4,), "int8", Mesh((2,)), [Shard(1)]), "dimension"),
        (lambda: placed((4,), "int8", Mesh((2,)), []), "0 placements"),
        (lambda: Layout.whole((4,), "float31"), "no dtype"),
        (lambda: Layout.whole((-4,), "float32"), "no shape"),
        (lambda: Layout.whole((1 << 40, 1 << 40), "uint8"), "limit"),
        (lambda: four.part((2,), (3,)), "no box"),
        (lambda: four.interleaved(0, 0, 1, 3), "do not divide"),
        (lambda: four.permuted([0, 0]), "no order"),
        (lambda: four.local_shape(2), "takes no part"),
        (lambda: flat((4,), "int8", [0, 0], first=0, count=1, numel=1), "described once"),
        (lambda: flat((4,), "int8", [0, 7], first=[0, 2], count=[1, 3], numel=9), "rank 7 leaves"),
        (lambda: flat((4,), "int8", [0, 7], first=0, count=4, numel=[9, 3]), "rank 7 leaves"),
        (lambda: Layout.stacked([four, Layout.whole((4,), "int8")]), "differ"),
        (lambda: Layout.stacked([four, Layout.whole((4,), "uint8", 1)]), "ranks 0, 1 hold"),
        (lambda: Layout.stacked([four, four], 1), "no dimension 1"),
        (lambda: Layout.union([four, Layout.whole((5,), "uint8", 1)]), "not one tensor"),
    ],
)
def test_what_cannot_be_is_refused(wrong, words):
    with pytest.raises(LayoutError, match=words):
        wrong()


MESH = Mesh((2,), ("dp",))
HALVES = Layout.placed([4], "float32", MESH, [Shard(0)])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mesh(2), "the shape of a mesh"),
        (lambda: Mesh((2, 2), "dp"), "the names"),
        (lambda: Mesh((2,), (3,)), "cannot be the name"),
        (lambda: Mesh((2,), None, ["x", 1]), "ranks of a mesh are integers"),
        (lambda: Layout.placed([4], "float32", (2,), [Shard(0)]), "not a tuple"),
        (lambda: Layout.placed(4, "float32", MESH, [Shard(0)]), "the shape of a tensor"),
        (lambda: Layout.explicit([4], "float32", [1]), "given by rank"),
        (lambda: Layout.explicit([4], "float32", {0: []}, 3), "given by rank"),
        (lambda: Layout.explicit([4], "float32", {0: 3}), "the boxes of a rank"),
        (lambda: Layout.explicit([4], "float32", {0: [3]}), "a box"),
        (lambda: Layout.explicit([4], "float32", {0: [((0,), 4)]}), "offset, size and place"),
        (lambda: Layout.explicit([4], "float32", {"a": [((0,), (4,))]}), "a rank"),
        (lambda: Layout.union([3]), "one Layout or more"),
        (lambda: Layout.union([]), "one Layout or more"),
        (lambda: Layout.stacked(3), "layouts"),
        (lambda: HALVES.part(0, (1,)), "an offset"),
        (lambda: HALVES.permuted(0), "an order of dimensions"),
        (lambda: StateLayout(["a"]), "given by name"),
        (lambda: StateLayout(3), "given by name"),
        (lambda: StateLayout({3: HALVES}), "the name of a tensor is text"),
        (lambda: StateLayout.decode("x"), "is bytes, not a str"),
    ],
)
def test_what_is_of_another_type_is_refused_by_name(make, words):
    with pytest.raises(LayoutError, match=words):
        make()
