"""Any layout, and anything made of it, agrees with the same operations on whole numpy arrays."""

from __future__ import annotations

import math

import numpy as np
import shards
from hypothesis import given
from hypothesis import strategies as st

from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate, Shard, StridedShard
from transport.sharding.state import StateLayout

SHAPES = st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple)


@st.composite
def meshes(draw):
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    ranks = draw(st.permutations(range(math.prod(shape) + 2)))[: math.prod(shape)]
    return Mesh(shape, ranks=ranks)


@st.composite
def placements(draw, mesh, rank):
    dims = st.integers(-rank, rank - 1)
    strided = st.builds(StridedShard, dims, st.integers(1, 9))
    one = st.one_of(st.just(Replicate()), st.builds(Shard, dims), strided)
    return [draw(one) for _ in mesh.shape]


@st.composite
def placed(draw):
    shape, mesh = draw(SHAPES), draw(meshes())
    return Layout.placed(shape, "float32", mesh, draw(placements(mesh, len(shape))))


@st.composite
def flat(draw):
    shape, ranks = draw(SHAPES), draw(st.integers(1, 5))
    numel = math.prod(shape)
    ends = [sorted(draw(st.tuples(*[st.integers(0, numel)] * 2))) for _ in range(ranks)]
    pads = [draw(st.tuples(*[st.integers(0, 3)] * 2)) for _ in range(ranks)]
    return Layout.flat(
        shape,
        "float32",
        draw(st.permutations(range(ranks))),
        first=[a for a, _ in ends],
        count=[b - a for a, b in ends],
        start=[a for a, _ in pads],
        numel=[b - a + sum(pad) for (a, b), pad in zip(ends, pads)],
    )


LAYOUTS = st.one_of(placed(), flat())


@given(st.data())
def test_placed_is_what_torch_does(data):
    shape, mesh = data.draw(SHAPES), data.draw(meshes())
    places = data.draw(placements(mesh, len(shape)))
    layout = Layout.placed(shape, "float32", mesh, places)
    tensor = np.arange(layout.numel).reshape(shape)
    found = shards.filled(layout)
    for place in np.ndindex(mesh.shape):
        expected = shards.placed(tensor, mesh, places, place)
        assert found[int(mesh.ranks[place])].shape == expected.shape
        assert (found[int(mesh.ranks[place])] == expected).all()


@given(flat())
def test_flat_is_a_slice_of_the_flattened_tensor(layout):
    form, found = layout.form, shards.filled(layout)
    for rank, numel, start, first, count in zip(*form.arrays()):
        expected = np.full(numel, shards.NOBODY)
        expected[start : start + count] = np.arange(first, first + count)
        assert (found[int(rank)] == expected).all()


@st.composite
def derivations(draw, layout):
    """A layout made of this one, and the same done to what a rank has of the whole tensor."""
    kind = draw(st.sampled_from(["part", "select", "interleaved", "permuted"]))
    dim = draw(st.integers(0, max(len(layout.shape) - 1, 0)))
    if kind == "permuted" or not layout.shape:
        axes = draw(st.permutations(range(len(layout.shape))))
        return layout.permuted(axes), lambda whole: whole.transpose(axes)
    if kind == "select" and layout.shape[dim]:
        index = draw(st.integers(0, layout.shape[dim] - 1))
        return layout.select(dim, index), lambda whole: whole.take(index, dim)
    if kind == "interleaved":
        step = draw(st.sampled_from([n for n in (1, 2, 3, 5, 7) if layout.shape[dim] % n == 0]))
        start, end = sorted(draw(st.tuples(*[st.integers(0, step)] * 2)))
        made = layout.interleaved(dim, start, end - start, step)
        taken = [i for i in range(layout.shape[dim]) if start <= i % step < end]
        return made, lambda whole: whole.take(taken, dim)
    ends = [sorted(draw(st.tuples(*[st.integers(0, n)] * 2))) for n in layout.shape]
    made = layout.part([a for a, _ in ends], [b - a for a, b in ends])
    return made, lambda whole: whole[tuple(slice(a, b) for a, b in ends)]


@given(st.data())
def test_derived_layouts_lie_in_the_same_local_tensors(data):
    layout = data.draw(LAYOUTS)
    locals_ = shards.filled(layout)
    held = shards.gathered(layout, locals_)
    for _ in range(data.draw(st.integers(1, 3))):
        layout, apply = data.draw(derivations(layout))
        held = {rank: apply(whole) for rank, whole in held.items()}
    found = shards.gathered(layout, locals_)
    assert found.keys() == held.keys()
    assert all((found[rank] == held[rank]).all() for rank in held)
    assert all(layout.local_shape(rank) == local.shape for rank, local in locals_.items())


@st.composite
def stackable(draw):
    """A dimension, and layouts whose local tensors differ along it only."""
    mesh, shape = draw(meshes()), draw(SHAPES)
    dim = draw(st.integers(0, len(shape) - 1))
    others = [Shard(axis) for axis in range(len(shape)) if axis != dim]
    places = [draw(st.sampled_from([Replicate(), *others])) for _ in mesh.shape]
    members = []
    for _ in range(draw(st.integers(1, 3))):
        extent = (*shape[:dim], draw(st.integers(0, 6)), *shape[dim + 1 :])
        mine = [draw(st.sampled_from([p, Shard(dim)])) if p == Replicate() else p for p in places]
        members.append(Layout.placed(extent, "float32", mesh, mine))
    return dim, members


@given(stackable())
def test_stacked_layouts_lie_in_joined_local_tensors(case):
    dim, members = case
    tensors = [1000 * i + np.arange(m.numel).reshape(m.shape) for i, m in enumerate(members)]
    locals_ = [shards.filled(m, tensor) for m, tensor in zip(members, tensors)]
    joined = {r: np.concatenate([local[r] for local in locals_], dim) for r in locals_[0]}
    for index, (member, stacked) in enumerate(zip(members, Layout.stacked(members, dim))):
        assert all(stacked.local_shape(rank) == joined[rank].shape for rank in joined)
        expected = shards.gathered(member, locals_[index])
        found = shards.gathered(stacked, joined)
        assert all((found[rank] == expected[rank]).all() for rank in expected)


@given(st.data())
def test_layouts_travel(data):
    layouts = data.draw(st.lists(LAYOUTS, min_size=1, max_size=3))
    layouts += [data.draw(derivations(layout))[0] for layout in layouts]
    layouts += Layout.stacked(layouts[:1] * 2)
    state = StateLayout((f"t{i}", layout) for i, layout in enumerate(layouts))
    again = StateLayout.decode(state.encode())
    assert again == state
    assert list(again) == list(state)
    for name, entry in state.items():
        assert again[name].layout.pieces() == entry.layout.pieces()
        assert (again[name].layout.ranks == entry.layout.ranks).all()
