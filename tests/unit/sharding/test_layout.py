"""Layouts against slicing done by hand: the pieces say where every element of a rank lies."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from transport.errors import LayoutError
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate, Shard, StridedShard
from transport.sharding.state import StateLayout

NOBODY = -1


def filled(layout):
    """Per rank the local tensor of a global tensor that holds 0, 1, 2 ...; NOBODY is padding."""
    tensor = np.arange(layout.numel).reshape(layout.shape)
    locals_ = {int(r): np.full(math.prod(layout.local_shape(r)), NOBODY) for r in layout.ranks}
    p = layout.pieces()
    for rank, offset, size, start, stride in zip(p.rank, p.offset, p.size, p.start, p.stride):
        box = tensor[tuple(slice(o, o + n) for o, n in zip(offset, size))]
        at = start + sum(i * s for i, s in zip(np.indices(tuple(size)), stride))
        assert (locals_[int(rank)][at] == NOBODY).all()
        locals_[int(rank)][at] = box
    return {rank: flat.reshape(layout.local_shape(rank)) for rank, flat in locals_.items()}


def chunk(tensor, count, dim):
    """As torch.chunk, with what it leaves out as empty ones."""
    step = -(-tensor.shape[dim] // count)
    edges = [min(step * i, tensor.shape[dim]) for i in range(count + 1)]
    return [tensor.take(range(a, b), dim) for a, b in itertools.pairwise(edges)]


def by_hand(tensor, mesh, placements, place):
    """What the rank at a place of the mesh holds, mesh dimension after mesh dimension."""
    for count, placement, index in zip(mesh.shape, placements, place):
        if isinstance(placement, Shard):
            tensor = chunk(tensor, count, placement.dim)[index]
        elif isinstance(placement, StridedShard):
            parts = chunk(tensor, placement.split_factor, placement.dim)
            taken = [chunk(part, count, placement.dim)[index] for part in parts]
            tensor = np.concatenate(taken, placement.dim)
    return tensor


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
    found = filled(layout)
    for place in np.ndindex(mesh.shape):
        expected = by_hand(tensor, mesh, placements, place)
        local = found[int(mesh.ranks[place])]
        assert local.shape == expected.shape
        assert (local == expected).all()


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
    found = filled(layout)
    assert (found[0] == [NOBODY] * 3 + list(range(7)) + [NOBODY] * 30).all()
    assert (found[1][:26] == range(7, 33)).all()
    assert (found[2][:27] == range(33, 60)).all()


def test_a_box_outside_is_refused():
    with pytest.raises(LayoutError, match="rank 3 leaves"):
        Layout.explicit((4,), "float32", {0: [((0,), (4,))], 3: [((2,), (3,))]})


def test_a_state_travels():
    mesh = Mesh((2, 2), ("dp", "tp"))
    placed = Layout.placed((4, 6), "float32", mesh, [Shard(0), Replicate()])
    state = StateLayout({"a": placed, "b": (placed.part((1, 0), (2, 6)), "a")})
    again = StateLayout.decode(state.encode())
    assert again == state
    assert again["b"].tensor == "a"
    assert again["b"].layout.pieces() == state["b"].layout.pieces()
    assert again.local_shapes(3) == {"a": ((2, 6), "float32")}
