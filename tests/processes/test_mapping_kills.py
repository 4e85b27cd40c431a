"""Mappings between processes, when one of them is killed: K and G of the fault reports."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from transport import Engine
from transport.testing.processes import PeerProcess
from transport.testing.servant import pattern

NBYTES = 3_000_000
WAIT = 60.0

MAP = """
mapping = servant.engine.map(remote)
servant.arrays[name] = mapping.numpy()
servant.arrays["mapping of " + name] = mapping
result = bytes(servant.arrays[name][:10])
"""


@pytest.fixture
def peer():
    with PeerProcess() as process:
        process.call("open")
        yield process


def _until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_killed_guest_frees_the_block(peer):
    with Engine() as engine:
        tensor = engine.empty(NBYTES, torch.uint8).copy_(torch.from_numpy(pattern(5, NBYTES)))
        region = engine.register(tensor)
        assert peer.call("run", MAP, remote=region.remote(), name="x") == bytes(tensor[:10].numpy())
        region.close()
        place = tensor.data_ptr()
        del tensor, region
        gc.collect()
        pool = engine._core.pool
        assert pool.held_bytes >= NBYTES
        assert engine.empty(NBYTES, torch.uint8).data_ptr() != place
        assert peer.call("run", "result = servant.arrays['mapping of x'].stale")
        assert peer.call("content", "x") == pattern(5, NBYTES).tobytes()
        peer.stop()
        assert pool.held_bytes >= NBYTES  # a stopped process goes on one day
        peer.kill()
        _until(lambda: pool.held_bytes == 0)
        assert engine.empty(NBYTES, torch.uint8).data_ptr() == place


def test_a_killed_owner_leaves_valid_memory_and_nothing_else(peer):
    before = set(Path("/dev/shm").iterdir())
    with Engine() as engine:
        remote = peer.call("make", "x", NBYTES, seed=9, pool=True)
        mapping = engine.map(remote)
        array, private = mapping.numpy(), mapping.torch()
        assert not mapping.stale
        peer.kill()
        assert mapping.stale
        assert array.tobytes() == pattern(9, NBYTES).tobytes()
        private.add_(1)
        assert private.numpy().tobytes() == (pattern(9, NBYTES) + np.uint8(1)).tobytes()
        assert set(Path("/dev/shm").iterdir()) <= before
        mapping.close()
        del array, private
        gc.collect()
        maps = Path("/proc/self/maps").read_text().splitlines()
        numbers = {engine._core.pool._segments[0].base} if engine._core.pool._segments else set()
        segments = [line for line in maps if "transport-segment" in line]
        assert len(segments) == len(numbers)


def test_a_forked_child_of_the_guest_releases_nothing():
    """H1: its finalizers leave the parent's mapping alone."""
    with Engine() as owner, Engine() as guest:
        tensor = owner.empty(NBYTES, torch.uint8).fill_(4)
        region = owner.register(tensor)
        mapping = guest.map(region.remote())
        child = os.fork()
        if child == 0:
            del mapping
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        region.close()
        del tensor, region
        gc.collect()
        assert owner._core.pool.held_bytes >= NBYTES
        assert mapping.numpy()[-1] == 4
        mapping.close()
        assert owner._core.pool.held_bytes == 0
