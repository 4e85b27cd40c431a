"""Memory of the GPU driver's double over real verbs: the peer-memory rung.

Soft-RoCE has no dma-buf registrations (EOPNOTSUPP), so the ladder goes on to the address. The
double maps its device memory for CPUs here, so that the kernel finds pages there, as a module for
peer memory would: the keys, the pinning and the packets are real.
"""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def gpu():
    double = GpuDouble(os.environ.get("TN_GPU_DOUBLE", "cuda"))
    double.begin()
    double.ctl("visible", 1)
    yield double
    double.library.fakegpu_reset()


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
