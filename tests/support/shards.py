"""Layouts worked out by hand: slicing whole tensors, the slow and obvious way."""

from __future__ import annotations

import itertools
import math

import numpy as np

from transport.sharding.placement import Shard, StridedShard

NOBODY = -1  # what padding holds


def filled(layout, tensor=None):
    """Rank -> its local tensor, when the whole tensor is `tensor` (0, 1, 2 ... by default)."""
    tensor = np.arange(layout.numel).reshape(layout.shape) if tensor is None else tensor
    locals_ = {int(r): np.full(math.prod(layout.local_shape(r)), NOBODY) for r in layout.ranks}
    for rank, box, at in boxes(layout):
        assert (locals_[rank][at] == NOBODY).all(), "two elements in one place"
        locals_[rank][at] = tensor[box]
    return {rank: flat.reshape(layout.local_shape(rank)) for rank, flat in locals_.items()}


def gathered(layout, locals_):
    """Rank -> what it has of the whole tensor, NOBODY where it has nothing."""
    whole = {int(rank): np.full(layout.shape, NOBODY) for rank in layout.ranks}
    for rank, box, at in boxes(layout):
        assert (whole[rank][box] == NOBODY).all(), "one element twice"
        whole[rank][box] = locals_[rank].ravel()[at]
    return whole


def boxes(layout):
    """Rank, slices of the whole tensor and indices into the flat local tensor, piece by piece."""
    p = layout.pieces()
    for rank, offset, size, start, stride in zip(p.rank, p.offset, p.size, p.start, p.stride):
        at = start + sum(i * s for i, s in zip(np.indices(tuple(size)), stride))
        yield int(rank), tuple(slice(o, o + n) for o, n in zip(offset, size)), at


def chunk(tensor, count, dim):
    """As torch.chunk, with what it leaves out as empty ones."""
    step = -(-tensor.shape[dim] // count)
    edges = [min(step * i, tensor.shape[dim]) for i in range(count + 1)]
    return [tensor.take(range(a, b), dim) for a, b in itertools.pairwise(edges)]


def placed(tensor, mesh, placements, place):
    """What the rank at a place of the mesh holds, mesh dimension after mesh dimension."""
    for count, placement, index in zip(mesh.shape, placements, place):
        if isinstance(placement, Shard):
            tensor = chunk(tensor, count, placement.dim)[index]
        elif isinstance(placement, StridedShard):
            parts = chunk(tensor, placement.split_factor, placement.dim)
            taken = [chunk(part, count, placement.dim)[index] for part in parts]
            tensor = np.concatenate(taken, placement.dim)
    return tensor
