"""What ranks do over torch.distributed's backend of this package, and over gloo beside it: imported
by torch_world, in every rank. Each job returns what has to be the same over both.

May import torch.
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


def _own(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(dist.get_rank() + 1)
    return torch.randint(1, 5, shape, generator=generator).to(dtype)


def _plain(*tensors):
    return [tensor.tolist() for tensor in tensors]


def reductions():
    found = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
        for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8):
            tensor = _own(3, 5, dtype=dtype)
            dist.all_reduce(tensor, op)
            found.append(tensor)
    tensor = _own(7)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait()
    assert work.is_completed()
    root = _own(4)
    dist.reduce(root, 1)
    found.append(root if dist.get_rank() == 1 else tensor)
    apart = _own(6, 4).t()  # is not contiguous
    dist.all_reduce(apart)
    dist.all_reduce_coalesced(several := [_own(2), _own(3)])
    return _plain(*found, tensor, apart, *several)


def gathers():
    size, rank = dist.get_world_size(), dist.get_rank()
    rows = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(rows, _own(2, 3))
    whole = torch.zeros(size * 5)
    dist.all_gather_into_tensor(whole, _own(5))
    at_root = [torch.zeros(4) for _ in range(size)] if rank == 2 else None
    dist.gather(_own(4), at_root, 2)
    part = torch.zeros(3)
    dist.scatter(part, list(torch.arange(3.0 * size).view(size, 3)) if rank == 0 else None, 0)
    sent = torch.full((3,), float(rank))
    dist.broadcast(sent, size - 1)
    return _plain(*rows, whole, *(at_root or ()), part, sent)


def scatters():
    size, rank = dist.get_world_size(), dist.get_rank()
    out, single = torch.zeros(3), torch.zeros(2)
    dist.reduce_scatter(out, [_own(3) + each for each in range(size)])
    dist.reduce_scatter_tensor(single, _own(2 * size))
    exchanged = torch.zeros(size)
    dist.all_to_all_single(exchanged, torch.arange(float(size)) + 10 * rank)
    rows = [each + 1 for each in range(size)]
    uneven = torch.zeros((rank + 1) * size, 2)
    dist.all_to_all_single(uneven, _own(sum(rows), 2), [rank + 1] * size, rows)
    parts = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(parts, [torch.full((2,), 10.0 * rank + each) for each in range(size)])
    return _plain(out, single, exchanged, uneven, *parts)


def messages():
    size, rank = dist.get_world_size(), dist.get_rank()
    left, right = (rank - 1) % size, (rank + 1) % size
    came = torch.zeros(3)
    ops = [dist.P2POp(dist.irecv, came, left), dist.P2POp(dist.isend, _own(3), right)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    first, second = torch.zeros(1), torch.zeros(1)
    if rank == 0:
        works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (7, 8)]
        for work in works:
            work.wait()
    if rank == 1:  # in the other order than they were sent
        later = dist.irecv(second, 0, tag=8)
        dist.recv(first, 0, tag=7)
        later.wait()
    dist.barrier()
    return _plain(came, first, second)


def objects():
    size, rank = dist.get_world_size(), dist.get_rank()
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    shared = [("a", 1) if rank == 1 else None]
    dist.broadcast_object_list(shared, 1)
    return gathered, shared


def groups():
    size, rank = dist.get_world_size(), dist.get_rank()
    halves = [dist.new_group(list(range(begin, size, 2))) for begin in (0, 1)]
    tensor = _own(3)
    dist.all_reduce(tensor, group=halves[rank % 2])
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("a", "b"))
    inner = _own(3)
    dist.all_reduce(inner, group=mesh["b"].get_group())
    world = functional.all_reduce(_own(2), "sum", dist.group.WORLD)
    return _plain(tensor, inner, world)


def dtensors():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(32.0 * 6).view(32, 6)
    found = []
    for place in (Shard(0), Shard(1), Replicate()):
        for target in (Shard(0), Shard(1), Replicate()):
            tensor = distribute_tensor(whole, mesh, [place]).redistribute(mesh, [target])
            found.append(tensor.to_local())
            assert torch.equal(tensor.full_tensor(), whole)
    return _plain(*found)


class _Model(nn.Module):
    """A small transformer that learns to copy."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 16)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens)))


def _train(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(steps):
        tokens = torch.randint(16, (4, 8), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp(steps=12):
    torch.manual_seed(0)
    model = DistributedDataParallel(_Model(), bucket_cap_mb=0.005)  # several buckets
    losses = _train(model, steps)
    return losses, _plain(*model.parameters())


def fsdp2(steps=4):
    torch.manual_seed(0)
    model = _Model()
    fully_shard(model.layer)
    fully_shard(model)
    losses = _train(model, steps)
    return losses, _plain(*(each.full_tensor() for each in model.parameters()))


def checkpoints():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(24.0).view(8, 3)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    checkpoint.save({"w": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder[0])
    into = {"w": distribute_tensor(torch.zeros(8, 3), mesh, [Shard(1)])}
    checkpoint.load(into, checkpoint_id=folder[0])
    return _plain(into["w"].full_tensor())


def futures():
    """What DDP's hooks use: a future that says when, and the tensors."""
    tensor = _own(5)
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    return _plain(doubled.wait(), tensor)


def listening():
    """Where this rank's engine is reached."""
    from transport.collectives import hub

    return list(hub.here().engine.addresses)
