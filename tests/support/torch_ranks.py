"""What ranks of torch.distributed do in tests/adapters: imported by torch_world, in every rank.

May import torch, and the package under test.
"""

from __future__ import annotations

import functools
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

from transport import weights
from transport.engine.engine import Engine
from transport.sharding.execute import Execution
from transport.sharding.importers.dtensor import layout_of, layouts_of
from transport.sharding.importers.fsdp1 import fsdp1_tensors, layouts_of_fsdp1


def counted(shape, begin=0):
    """begin, begin + 1 ... in that shape."""
    numel = torch.Size(shape).numel()
    return torch.arange(begin, begin + numel, dtype=torch.float32).reshape(shape)


def placement(described):
    """From ("S", dim), ("SS", dim, split factor) or ("R",), which need no torch to be said."""
    kind, *about = described
    if kind == "R":
        return Replicate()
    return Shard(*about) if kind == "S" else _StridedShard(about[0], split_factor=about[1])


@functools.cache
def device_mesh(shape):
    names = tuple("abcd"[: len(shape)])
    ranks = torch.arange(torch.Size(shape).numel()).reshape(shape)
    return DeviceMesh("cpu", ranks, mesh_dim_names=names)


def dtensors(cases):
    """Of {name: (shape, mesh shape, placements)}: the layouts, and this rank's local tensors."""
    state = {name: _dtensor(counted(shape), *at) for name, (shape, *at) in cases.items()}
    locals_ = {name: tensor.to_local().numpy() for name, tensor in state.items()}
    return layouts_of(state).encode(), locals_


class Block(nn.Module):
    def __init__(self, wide, narrow):
        super().__init__()
        self.up = nn.Linear(narrow, wide)
        self.down = nn.Linear(wide, narrow)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def _model(*sizes):
    """Blocks whose parameters are counted through: {name: whole tensor} goes with it."""
    model = nn.Sequential(*(Block(wide, narrow) for wide, narrow in sizes))
    whole, begin = {}, 0
    for name, parameter in model.named_parameters():
        whole[name] = counted(parameter.shape, begin)
        parameter.data.copy_(whole[name])
        begin += parameter.numel()
    return model, {name: tensor.numpy() for name, tensor in whole.items()}


def fsdp2_over_tp(mesh_shape, sizes):
    """FSDP2 around tensor parallelism: torch chooses the placements, _StridedShard among them."""
    mesh = device_mesh(mesh_shape)
    *outer, last = mesh.mesh_dim_names
    model, whole = _model(*sizes)
    for block in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh[last], plan)
        fully_shard(block, mesh=mesh[tuple(outer)])
    fully_shard(model, mesh=mesh[tuple(outer)])
    state = model.state_dict()
    locals_ = {name: tensor.to_local().numpy() for name, tensor in state.items()}
    kinds = sorted({type(p).__name__ for t in state.values() for p in t.placements})
    return layouts_of(state).encode(), locals_, whole, kinds


def fsdp1(sizes, strategy, orig, tied):
    """FSDP1: a flat parameter per block and one of the rest. A permuted parameter is among them."""
    model, whole = _model(*sizes)
    weight = model[0].up.weight
    model[0].up.weight = nn.Parameter(weight.data.t().contiguous().t())
    if tied:
        model[1].up.bias = model[1].down.bias
        whole["1.up.bias"] = whole["1.down.bias"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {
            "sharding_strategy": ShardingStrategy[strategy],
            "use_orig_params": orig,
            "device_id": torch.device("cpu"),
        }
        model[1] = FullyShardedDataParallel(model[1], **options)
        wrapped = FullyShardedDataParallel(model, **options)
    state = layouts_of_fsdp1(wrapped)
    locals_ = {name: tensor.numpy().copy() for name, tensor in fsdp1_tensors(wrapped).items()}
    return state.encode(), locals_, whole


def fsdp1_state_dict(sizes):
    """FSDP1's sharded state dict: ShardedTensors of rows, and nothing on ranks that have none."""
    model, whole = _model(*sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        kind = StateDictType.SHARDED_STATE_DICT
        with FullyShardedDataParallel.state_dict_type(wrapped, kind):
            state = wrapped.state_dict()
    locals_ = {
        name: shard.tensor.numpy()
        for name, tensor in state.items()
        for shard in tensor.local_shards()
    }
    return layouts_of(state).encode(), locals_, whole


def moved(cases, folder):
    """Of {name: (shape, source, target)}, each (mesh shape, placements): the target by three ways.

    {name: (ours, redistributed by torch, loaded from a distributed checkpoint)}, this rank's parts;
    the last is None for what checkpoints refuse: ranks whose part is more than one box.
    """
    source = {name: _dtensor(counted(shape), *at) for name, (shape, at, _) in cases.items()}
    expected = {name: _torchs(source[name], *at) for name, (_, _, at) in cases.items()}
    ours, loaded = (
        {name: _dtensor(torch.full(shape, -1.0), *at) for name, (shape, _, at) in cases.items()}
        for _ in range(2)
    )
    able = {name for name in cases if all(map(_is_one_box, (source[name], loaded[name])))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save({n: source[n] for n in able}, checkpoint_id=folder)
        checkpoint.load({n: loaded[n] for n in able}, checkpoint_id=folder)
    _pull(source, ours)
    return {
        name: tuple(
            tensors[name].to_local().numpy() if name in able or tensors is not loaded else None
            for tensors in (ours, expected, loaded)
        )
        for name in cases
    }


def published(shape):
    """DTensors that all ranks publish, fetched into DTensors on another mesh."""
    full = counted(shape)
    trained = distribute_tensor(full, device_mesh((2, 2)), [Shard(0), Replicate()])
    served = distribute_tensor(torch.zeros_like(full), device_mesh((4,)), [Shard(1)])
    with Engine() as engine, weights.publish(engine, "w", {"layer": {"weight": trained}}, 1):
        addresses = [""] * 4
        dist.all_gather_object(addresses, engine.addresses[0])
        done = weights.fetch(engine, "w", {"layer": {"weight": served}}, addresses)
        dist.barrier()
    return done.version, bool((served.full_tensor() == full).all())


def _dtensor(tensor, mesh, places):
    places = [placement(place) for place in places]
    return distribute_tensor(tensor, device_mesh(mesh), places, src_data_rank=None)


def _is_one_box(tensor):
    ranks = layout_of(tensor).pieces().rank
    return len(set(ranks.tolist())) == len(ranks)


def _torchs(tensor, mesh, places):
    """By redistribute within a mesh, else by way of the whole tensor.

    Strided shards too go by way of the whole: redistribute of torch 2.13 gives some ranks more rows
    than the target's placements do.
    """
    places = [placement(place) for place in places]
    strided = any(isinstance(place, _StridedShard) for place in (*places, *tensor.placements))
    if tuple(tensor.device_mesh.shape) == mesh and not strided:
        return tensor.redistribute(placements=places)
    return distribute_tensor(tensor.full_tensor(), device_mesh(mesh), places, src_data_rank=None)


def _pull(source, target):
    """Every rank reads what its tensors of the target need, by one plan for all of them."""
    rank, everybody = dist.get_rank(), [None] * dist.get_world_size()
    with Engine(name=f"rank {rank}") as engine:
        locals_ = {name: tensor.to_local() for name, tensor in source.items()}
        held = {name: engine.register(local) for name, local in locals_.items() if local.numel()}
        handles = {name: region.remote() for name, region in held.items()}
        dist.all_gather_object(everybody, handles)
        states = layouts_of(source), layouts_of(target)
        remote = dict(enumerate(everybody))
        with Execution(engine, *states, rank, remote=remote, local=target) as execution:
            execution.run(60)
        dist.barrier()
