"""Ray's object store, from one actor to another: what is timed makes the object, hands it over and
waits until the other actor has it. Ray starts its own processes, so there is one side only."""

from __future__ import annotations

import os

import numpy as np
from protocol import Driver, aligned, clocked, pattern, serve

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it asks on the first import
import ray

_STORE_ROOM = 4  # objects of the largest size: the last one is still held while the next is made


@ray.remote(num_cpus=0)
class Taker:
    def __init__(self):
        self.blocks = []

    def take(self, blocks):
        self.blocks = blocks  # views of the object store's own memory

    def clear(self):
        self.blocks = []

    def holds(self, layout, seed):
        rows = pattern(layout.bytes, seed).reshape(layout.batch, layout.size)
        wanted = rows[layout.slots("initiator")]
        return len(self.blocks) == layout.batch and all(
            np.array_equal(block, row) for block, row in zip(self.blocks, wanted)
        )


@ray.remote(num_cpus=0)
class Giver:
    def __init__(self, taker, size):
        self.taker, self.buffer, self.blocks = taker, aligned(size), []

    def prepare(self, layout):
        places = layout.offsets("initiator")
        self.blocks = [self.buffer[place : place + layout.size] for place in places]

    def fill(self, size, seed):
        self.buffer[:size] = pattern(size, seed)

    def give(self, count):
        return clocked(lambda: ray.get(self.taker.take.remote(self.blocks)), count)


class Ray(Driver):
    version = ray.__version__

    def __init__(self, role, options):
        super().__init__(role, options)
        room = max(_STORE_ROOM * self.bytes, 256 << 20)
        ray.init(num_cpus=2, object_store_memory=room, include_dashboard=False, log_to_driver=False)
        self.taker = Taker.remote()
        self.giver = Giver.remote(self.taker, self.bytes)

    def prepare(self, layout):
        ray.get([self.giver.prepare.remote(layout), self.taker.clear.remote()])

    def fill(self, seed):
        ray.get(self.giver.fill.remote(self.layout.bytes, seed))

    def run(self, count):
        return ray.get(self.giver.give.remote(count))

    def verify(self, seed):
        return ray.get(self.taker.holds.remote(self.layout, seed))

    def close(self):
        ray.shutdown()


serve(Ray)
