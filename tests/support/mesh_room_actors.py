"""Actors that keep what they are given, and that call others; test_mesh_rooms.py calls them."""

from __future__ import annotations

import asyncio
import gc
import os

import numpy as np
import torch

from transport import Actor, endpoint
from transport.mesh import tensors
from transport.mesh.serve import server


def add(value):
    """Exactly, where float32 would round."""
    exact = np.float64 if isinstance(value, np.ndarray) else torch.float64
    return float(value.sum(dtype=exact))


class Guest(Actor):
    """Keeps its arguments."""

    def __init__(self):
        self.kept = []

    @endpoint
    def keep(self, value):
        self.kept.append(value)
        return add(value)

    @endpoint
    def sums(self):
        return [add(each) for each in self.kept]

    @endpoint
    def total(self, *values):
        return [add(value) for value in values]

    @endpoint
    def changed(self, value):
        value += 1
        return add(value)

    @endpoint
    def fails(self, value):
        raise ValueError(add(value))

    @endpoint
    def stay(self):
        return self.kept[-1]

    @endpoint
    def give(self, number):
        """Of one memory, which changes with each call."""
        if not self.kept:
            self.kept.append(torch.empty(1 << 20))
        return self.kept[0].fill_(number)

    @endpoint
    def forget(self):
        self.kept.clear()

    @endpoint
    def rooms(self):
        """Bytes of rooms, and of pool memory."""
        gc.collect()
        here = tensors.here()
        here.engine.peers  # gives back what finalizers left
        return server().rooms.nbytes, here.engine._core.pool.used_bytes

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def pass_on(self, other, value):
        return other.total.call_one(value).get(60)

    @endpoint
    def pour(self, other, size, times):
        """Calls with other values each time, from one memory."""
        source = torch.empty(size)
        for number in range(times):
            source.fill_(number)
            if other.total.call_one(source).get(60) != [float(number * size)]:
                return number
        return times


class Loop(Actor):
    """Has an event loop."""

    @endpoint
    async def total(self, *values):
        await asyncio.sleep(0)
        return [add(value) for value in values]
