"""Memory of the GPU driver's double over real verbs: the rungs of the ladder from peer memory on.

Soft-RoCE has no dma-buf registrations (EOPNOTSUPP), so the ladder goes on to the address. Where the
double maps its device memory for CPUs, the kernel finds pages there, as a module for peer memory
would: the keys, the pinning and the packets are real. Elsewhere the kernel refuses the address, as
it does without such a module, and GPU memory goes through pinned host memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os

import pytest
import rig
from gpu_double import GpuDouble
from verbs_ways import TWO_HOSTS

from transport.config import Settings
from transport.engine.engine import Engine
from transport.testing.contract import FarSide
from transport.testing.servant import pattern

pytestmark = pytest.mark.usefixtures("on_b")

WAIT = 60.0
SIZE = 1 << 20
_STAGED = (5 << 20) + 12_345  # several chunks, and a part of one


@pytest.fixture
def hidden():
    """The double, whose device memory no CPU and no NIC may touch."""
    double = GpuDouble(os.environ.get("TN_GPU_DOUBLE", "cuda"))
    double.begin()
    yield double
    double.library.fakegpu_reset()


@pytest.fixture
def gpu(hidden):
    hidden.ctl("visible", 1)
    return hidden


def test_both_ways_and_in_part(gpu):
    settings = Settings.from_env(**gpu.settings())
    with Engine(settings=settings) as engine, FarSide(TWO_HOSTS) as far:
        remote = far.make("x", SIZE)
        tensor = gpu.tensor(gpu.alloc(2 * SIZE) + 512, (SIZE,))
        gpu.write(tensor, pattern(7, SIZE).tobytes())
        transfer = engine.write(tensor, remote).wait(WAIT)
        assert (transfer.provider, transfer.path) == ("verbs", "rc")
        assert far.content("x") == pattern(7, SIZE).tobytes()
        back = gpu.tensor(gpu.alloc(SIZE), (1000,))
        engine.read(remote[5000:6000], into=back).wait(WAIT)
        assert gpu.read(back) == pattern(7, SIZE).tobytes()[5000:6000]


def test_a_region_that_peers_read(gpu):
    settings = Settings.from_env(**gpu.settings())
    with Engine(settings=settings, listen="10.8.0.2:0") as engine, FarSide(TWO_HOSTS) as far:
        tensor = gpu.tensor(gpu.alloc(SIZE) + 4096 + 512, (100_000,))
        gpu.write(tensor, pattern(8, 100_000).tobytes())
        before = rig.resources()["mr"]
        with engine.register(tensor) as region:
            assert rig.resources()["mr"] == before + 1
            line = region.explain()[0]
            assert "1 registration through peer memory; as dma-buf: Operation not supported" in line
            far.make("x", 100_000)
            assert far.call("read", region.remote(), "x", WAIT) == "rc"
            assert far.content("x") == pattern(8, 100_000).tobytes()
            connected = rig.resources()["mr"]
        assert rig.resources()["mr"] == connected - 1


def test_refused_by_the_kernel_it_goes_through_pinned_memory(hidden):
    """GPU memory at both ends, read and written, in more than a chunk and in part of one."""
    settings = Settings.from_env(**hidden.settings())
    far_way = dataclasses.replace(
        TWO_HOSTS,
        far={**TWO_HOSTS.far, "settings": settings},
        prepare="import gpu_far; gpu_far.prepare(servant)",
        environment={"TN_GPU_MEMORY": "vmm"},
    )
    with Engine(settings=settings) as engine, FarSide(far_way) as far:
        theirs = far.make("x", _STAGED, seed=9)
        mine = hidden.new((_STAGED,))
        with engine.register(mine) as region:
            line = region.explain()[0]
        assert "as dma-buf: Operation not supported" in line, line
        assert "through peer memory" in line, line
        assert "Bad address" in line, line
        transfer = engine.read(theirs, into=mine).wait(WAIT)
        assert (transfer.provider, transfer.path) == ("staged", "staged over verbs")
        assert _digest(hidden.read(mine)) == _digest(pattern(9, _STAGED).tobytes())
        hidden.write(mine, pattern(10, _STAGED).tobytes())
        transfer = engine.write(mine, theirs).wait(WAIT)
        assert (transfer.provider, transfer.path) == ("staged", "staged over verbs")
        assert far.call("digest", "x") == _digest(pattern(10, _STAGED).tobytes())
        part = hidden.new((1000,))
        engine.read(theirs[5000:6000], into=part).wait(WAIT)
        assert hidden.read(part) == pattern(10, _STAGED).tobytes()[5000:6000]
        assert hidden.get("illegal") == 0


def _digest(content):
    return hashlib.sha256(content).hexdigest()
