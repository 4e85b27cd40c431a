"""torchmonarch's RDMABuffer between two actors; without an RDMA device it falls back to TCP.

Monarch starts its own processes, so there is one side only. A buffer has no sub-ranges, so a batch
is one RDMABuffer for each block, and one RDMAAction.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from pathlib import Path

import numpy as np
from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import RDMAAction, RDMABuffer
from protocol import Driver, aligned, pattern, serve

_PATIENCE = 60  # seconds, of one submission


class Owner(Actor):
    def __init__(self, size):
        self.buffer, self.buffers = aligned(size), []

    @endpoint
    async def offer(self, layout):
        for buffer in self.buffers:
            await buffer.drop()
        rows = memoryview(self.buffer)
        places = layout.offsets("target").tolist()
        self.buffers = [RDMABuffer(rows[place : place + layout.size]) for place in places]
        return self.buffers

    @endpoint
    async def fill(self, size, seed):
        self.buffer[:size] = 0 if seed is None else pattern(size, seed)

    @endpoint
    async def holds(self, layout, seed):
        wanted = layout.delivered(seed, "target")
        return bool(np.array_equal(self.buffer[: layout.bytes], wanted))


class User(Actor):
    def __init__(self, size):
        self.buffer, self.action = aligned(size), None

    @endpoint
    async def prepare(self, layout, buffers, op):
        rows, self.action = memoryview(self.buffer), RDMAAction()
        for place, remote in zip(layout.offsets("initiator").tolist(), buffers):
            here = rows[place : place + layout.size]
            if op == "write":
                self.action.write_remote(remote, here)
            else:
                self.action.read_remote(here, remote)

    @endpoint
    async def fill(self, size, seed):
        self.buffer[:size] = 0 if seed is None else pattern(size, seed)

    @endpoint
    async def run(self, count):
        clock, times = time.perf_counter_ns, []
        for _ in range(count):
            start = clock()
            await self.action.submit(timeout=_PATIENCE)
            times.append(clock() - start)
        return times

    @endpoint
    async def holds(self, layout, seed):
        wanted = layout.delivered(seed, "initiator")
        return bool(np.array_equal(self.buffer[: layout.bytes], wanted))


class Monarch(Driver):
    version = importlib.metadata.version("torchmonarch")

    def __init__(self, role, options):
        super().__init__(role, options)
        # Where the processes that it starts find `protocol`.
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
        self.processes = [this_host().spawn_procs(per_host={"one": 1}) for _ in range(2)]
        self.user = self.processes[0].spawn("user", User, self.bytes)
        self.owner = self.processes[1].spawn("owner", Owner, self.bytes)
        self.read_from, self.written_to = self.user, self.owner
        if self.op == "read":
            self.read_from, self.written_to = self.owner, self.user

    def prepare(self, layout):
        buffers = self.owner.offer.call_one(layout).get()
        self.user.prepare.call_one(layout, buffers, self.op).get()

    def fill(self, seed):
        self.written_to.fill.call_one(self.layout.bytes, None).get()
        self.read_from.fill.call_one(self.layout.bytes, seed).get()

    def run(self, count):
        return self.user.run.call_one(count).get()

    def verify(self, seed):
        return self.written_to.holds.call_one(self.layout, seed).get()

    def close(self):
        for mesh in self.processes:
            mesh.stop().get()


serve(Monarch)
