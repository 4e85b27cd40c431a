"""A rank of either side as an actor of Monarch. Imported by the processes that it starts."""

from __future__ import annotations

import os

import torch.distributed as dist
import torchstore
from dtensors import join
from member import Member
from monarch.actor import Actor, current_rank, endpoint
from torchstore.transport.pipe import TensorSlice


class Rank(Actor):
    def __init__(self, side, spec):
        rank = current_rank().rank
        os.environ["LOCAL_RANK"] = str(rank)
        self.member = Member(side, rank, spec, {})
        self.spec = spec

    @endpoint
    async def join(self, port, world):
        member = self.member
        store = dist.TCPStore("127.0.0.1", port, world, is_master=member.rank == 0)
        self.tensors, self.slices = join(member, store), {}
        for name, (offset, size) in member.boxes.items():
            shape = tuple(self.spec["tensors"][name]["shape"])
            rank = (member.rank,)
            self.slices[name] = TensorSlice(tuple(offset), rank, shape, tuple(size), (world,))

    @endpoint
    async def fill(self, seed):
        self.member.fill(seed)

    @endpoint
    async def clear(self):
        self.member.clear()

    @endpoint
    async def put(self):
        for name, tensor in self.tensors.items():
            await torchstore.put(name, tensor)

    @endpoint
    async def get(self):
        for name, wanted in self.slices.items():
            await torchstore.get(name, self.member.tensors[name], wanted)

    @endpoint
    async def digest(self):
        return self.member.digest()
