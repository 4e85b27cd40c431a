"""Actors that hold, pass and lose tensors; tests/processes/test_mesh_tensors.py calls them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from pathlib import Path

import possessions
import torch

from transport import Actor, Sharded, current_rank, endpoint
from transport.errors import TransportError
from transport.mesh import tensors
from transport.mesh.serve import server


class Slow:
    """Takes its time to be unpickled."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __reduce__(self):
        return time.sleep, (self.seconds,)


class Raises:
    """When it is unpickled."""

    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        return _raise, (self.kind,)


def _raise(kind):
    raise kind


class Ticker(Actor):
    """Has an event loop."""

    def __init__(self):
        self.took = []

    @endpoint
    async def longest_pause(self, seconds):
        """Of the loop, within so many."""
        longest, end = 0.0, time.monotonic() + seconds
        while (before := time.monotonic()) < end:
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)
        return longest

    @endpoint
    async def take(self, name, value):
        self.took.append((name, current_rank().rank))

    @endpoint
    async def taken(self):
        return self.took


class Keeper(Actor):
    """Gives tensors, takes tensors, dies on request."""

    def __init__(self, start=None):
        self.kept = {} if start is None else {"start": start}

    @endpoint
    def make(self, name, size, value):
        self.kept[name] = torch.full((size,), float(value))

    @endpoint
    def give(self, name):
        return self.kept[name]

    @endpoint
    def fill(self, name, value):
        self.kept[name].fill_(value)

    @endpoint
    def take(self, name, value):
        self.kept[name] = value

    @endpoint
    def total(self, value):
        return float(sum(part.sum() for part in value))

    @endpoint
    def fetched(self, remote, timeout=None):
        return float(remote.fetch(timeout=timeout).sum())

    @endpoint
    def drop(self, name):
        del self.kept[name]

    @endpoint
    def collects(self, does):
        """Whether the garbage collector of this process does."""
        (gc.enable if does else gc.disable)()

    @endpoint
    def held(self):
        return possessions.held()

    @endpoint
    def fetch_error(self, name, timeout):
        """What fetching a remote tensor that is kept here raises, and its text."""
        try:
            self.kept[name].fetch(timeout=timeout)
        except TransportError as error:
            return type(error).__name__, str(error)
        return "", ""

    @endpoint
    def needs(self):
        """Leases, and bytes of pool memory and regions beyond the engine's own."""
        if not tensors.is_open():
            return 0, 0, 0
        here = tensors.here()
        gc.collect()
        here.engine.peers  # gives back what finalizers left
        return len(here.leases), here.engine._core.pool.used_bytes, len(here.engine.regions)

    @endpoint
    def rooms(self):
        """Bytes that wait for the next calls."""
        return server().rooms.nbytes

    @endpoint
    def opened(self):
        return tensors.is_open()

    @endpoint
    def descriptors(self):
        return len(list(Path("/proc/self/fd").iterdir()))

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)


class Shards(Actor):
    """Has its rank's part of a tensor, and takes parts of others."""

    def __init__(self, whole=None, layout=None):
        self.layout = layout
        if whole is not None:
            box = layout.pieces_of(current_rank().rank)
            (low,), (size,) = box.offset.tolist(), box.size.tolist()
            index = tuple(slice(start, start + n) for start, n in zip(low, size))
            self.local = whole[index].clone()

    @endpoint
    def part(self):
        return Sharded.part(self.local, self.layout)

    @endpoint
    def take(self, local):
        return current_rank().rank, local

    @endpoint
    def fetch(self, sharded, layout):
        return sharded.fetch(layout)

    @endpoint
    def pid(self):
        return os.getpid()
