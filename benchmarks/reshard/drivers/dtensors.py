"""A side's local tensors as torch's DTensors, for what takes those."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard


def join(member, store):
    """Makes the process group of the member's side, and its tensors' DTensors by name."""
    about = member.spec["sides"][member.side]
    world = len(about["boxes"])
    dist.init_process_group("gloo", store=store, world_size=world, rank=member.rank)
    mesh = init_device_mesh("cpu", (world,))
    made = {}
    for name, tensor in member.tensors.items():
        dim = about["placements"][name]
        placement = Replicate() if dim is None else Shard(dim)
        shape, stride = tuple(member.spec["tensors"][name]["shape"]), [1]
        for extent in shape[:0:-1]:
            stride.insert(0, extent * stride[0])
        made[name] = DTensor.from_local(
            tensor, mesh, [placement], run_check=False, shape=shape, stride=tuple(stride)
        )
    return made
