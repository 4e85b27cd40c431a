"""Runs plans on numpy arrays, and makes layouts at random: the oracle for what a plan should do."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate, Shard, StridedShard

NOBODY = -1


def filled(state, value):
    """rank -> local tensor -> what it holds. `value(number, tensor)` gives a global tensor."""
    made = {rank: {} for rank in state.ranks}
    for number, name in enumerate(sorted(state)):
        entry = state[name]
        layout = entry.layout
        tensor = value(number, np.arange(layout.numel).reshape(layout.shape))
        for rank in layout.ranks.tolist():
            local = made[rank].setdefault(
                entry.tensor, np.full(math.prod(layout.local_shape(rank)), NOBODY)
            )
            p = layout.pieces_of(rank)
            for offset, size, start, stride in zip(p.offset, p.size, p.start, p.stride):
                box = tensor[tuple(slice(o, o + n) for o, n in zip(offset, size))]
                at = start + sum(i * s for i, s in zip(np.indices(tuple(size)), stride))
                local[at] = box
    return made


def numbered(number, tensor):
    return tensor + 1000 * number


def nothing(_, tensor):
    return np.full_like(tensor, NOBODY)


def run(plan, sources, targets):
    """Makes the copies; an element that is written twice, or is not there, is an error."""
    for i in range(len(plan)):
        source = sources[int(plan.source_rank[i])][plan.source_names[plan.source_tensor[i]]]
        target = targets[int(plan.target_rank[i])][plan.target_names[plan.target_tensor[i]]]
        steps = np.indices(tuple(plan.size[i])).reshape(len(plan.size[i]), -1)
        at = plan.target_start[i] + plan.target_stride[i] @ steps
        assert (target[at] == NOBODY).all()
        taken = source[plan.source_start[i] + plan.source_stride[i] @ steps]
        assert (taken != NOBODY).all()
        target[at] = taken


def same(left, right):
    return left.keys() == right.keys() and all(
        left[rank].keys() == right[rank].keys()
        and all(np.array_equal(left[rank][name], right[rank][name]) for name in left[rank])
        for rank in left
    )


# The last dimension is long at times, and elements are large: then boxes are worth dividing.
shapes = st.lists(st.integers(1, 9), max_size=3).flatmap(
    lambda shape: st.sampled_from([tuple(shape), (*shape[:-1], 300)] if shape else [()])
)


@st.composite
def placed(draw, shape):
    mesh = Mesh(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    kinds = [st.just(Replicate())]
    if shape:
        dims = st.integers(0, len(shape) - 1)
        kinds += [st.builds(Shard, dims), st.builds(StridedShard, dims, st.integers(1, 3))]
    placements = [draw(st.one_of(kinds)) for _ in mesh.shape]
    return Layout.placed(shape, "complex128", mesh, placements)


@st.composite
def flat(draw, shape):
    numel = math.prod(shape)
    cuts = sorted(draw(st.lists(st.integers(0, numel), max_size=4)))
    edges = [0, *cuts, numel]
    count = np.diff(edges)
    start = draw(st.integers(0, 3))
    ranks = np.arange(len(count))
    return Layout.flat(
        shape, "complex128", ranks, first=edges[:-1], count=count, numel=count + 5, start=start
    )


@st.composite
def ragged(draw, shape):
    """Boxes that overlap at random over the one whole tensor of some rank."""
    boxes = {draw(st.integers(0, 5)): [((0,) * len(shape), shape)]}
    for rank in range(draw(st.integers(0, 5))):
        if rank not in boxes:
            low = tuple(draw(st.integers(0, n - 1)) for n in shape)
            size = tuple(draw(st.integers(1, n - at)) for n, at in zip(shape, low))
            boxes[rank] = [(low, size)]
    return Layout.explicit(shape, "complex128", boxes)


@st.composite
def derived(draw, shape):
    """As a part of larger, interleaved or transposed local tensors."""
    axes = draw(st.permutations(range(len(shape))))
    step, dim = draw(st.integers(1, 3)), draw(st.integers(0, len(shape) - 1))
    start = draw(st.integers(0, step - 1))
    longer = [n * step if i == dim else n for i, n in enumerate(shape)]
    base = [longer[axes.index(i)] for i in range(len(shape))]
    turned = draw(layouts(tuple(base), deep=False)).permuted(axes)
    return turned.interleaved(dim, start, 1, step)


def layouts(shape, deep=True):
    """Any way to hold a tensor, with replicas and without."""
    kinds = [placed(shape), ragged(shape)]
    if shape:
        kinds += [flat(shape), derived(shape)] if deep else [flat(shape)]
    return st.one_of(kinds)
