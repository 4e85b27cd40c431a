"""State dicts, their layouts and what each rank has of them, for tests of weights."""

from __future__ import annotations

import torch

from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate, Shard
from transport.sharding.state import StateLayout

FULL = {
    "embed": torch.arange(64 * 48, dtype=torch.float32).view(64, 48),
    "bias": torch.arange(33, dtype=torch.int64),
    "norm": torch.arange(64, dtype=torch.bfloat16).view(8, 4, 2),
    "empty": torch.empty(0, 4),
}


def grid(mesh: str = "dp=2,tp=2", full=FULL) -> StateLayout:
    """Replicated over the mesh's first dimension, sharded by rows over the second."""
    made = Mesh.parse(mesh)
    placements = [Replicate(), Shard(0)]
    return StateLayout(
        {n: Layout.placed(t.shape, t.dtype, made, placements) for n, t in full.items()}
    )


def local(layout: StateLayout, rank: int, full=FULL):
    """What a rank holds of it."""
    tensors = {}
    for name, entry in layout.items():
        pieces = entry.layout.pieces_of(rank)
        tensor = torch.zeros(entry.layout.local_shape(rank), dtype=full[name].dtype)
        for offset, size in zip(pieces.offset, pieces.size):
            box = tuple(slice(int(o), int(o + s)) for o, s in zip(offset, size))
            tensor.copy_(full[name][box])
        tensors[name] = tensor
    return tensors


def blank(full=FULL):
    return {name: torch.full_like(tensor, 99) for name, tensor in full.items()}


def same(one, other) -> bool:
    return all(torch.equal(one[name], other[name]) for name in other)


def filled(value, full=FULL):
    return {name: torch.full_like(tensor, value) for name, tensor in full.items()}
