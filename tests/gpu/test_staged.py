"""staged keeps the contract: a GPU's memory in another process, joined by nothing but TCP."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gpu_double import GpuDouble

from transport import Engine, Read
from transport.config import Settings
from transport.errors import Unavailable
from transport.testing.contract import Contract, FarSide, Way
from transport.testing.contract_data import WAIT
from transport.testing.servant import pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREPARE = "import gpu_far; gpu_far.prepare(servant)"
_DOUBLE = GpuDouble(os.environ.get("TN_GPU_DOUBLE", "cuda"))


def _way(memory: str, *providers: str) -> Way:
    settings = Settings.from_env(**_DOUBLE.settings())
    options: dict[str, Any] = {"settings": settings, "providers": (*providers, "staged")}
    environment = {"TN_GPU_MEMORY": memory}
    path = f"staged over {providers[0]}"
    return Way("staged", path, near=options, far=options, prepare=_PREPARE, environment=environment)


class _Rules(Contract):
    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def driver() -> Iterator[None]:
        with _DOUBLE.leaves_nothing():
            yield


class TestOverTcp(_Rules):
    way = _way("vmm", "tcp")

    def test_the_peer_tells_why_nothing_else_carries_it(self, near: Engine, far: FarSide) -> None:
        """K9: a line for each provider."""
        theirs = far.make("x", 100)
        near.read(theirs, np.zeros(100, np.uint8)).wait(WAIT)
        (peer,) = [one for one in near.peers if one.incarnation == far.incarnation]
        lines = peer.explain(theirs)
        assert "staged: ok" in lines
        assert any(line.endswith("it cannot reach device memory") for line in lines)

    def test_a_batch_of_gpu_and_private_memory(self, near: Engine, far: FarSide) -> None:
        """Both kinds of the peer's memory in one transfer."""
        theirs = far.make("x", 1 << 20, seed=5)
        host = far.call("make_private", "y", 1 << 20, seed=6)
        into = [np.zeros(1 << 20, np.uint8) for _ in range(2)]
        transfer = near.submit([Read(theirs, into[0]), Read(host, into[1])])
        transfer.wait(WAIT)
        assert transfer.provider == "staged"
        for part, seed in zip(into, (5, 6), strict=True):
            assert part.tobytes() == pattern(seed, 1 << 20).tobytes()

    def test_a_peer_without_a_gpu(self, near: Engine) -> None:
        """Its host memory is read to, and written from, a GPU's here; it needs no driver."""
        way = Way("staged", "", far={"providers": ("tcp", "staged")})
        mine = _DOUBLE.new((1 << 20,))
        with FarSide(way) as plain:
            near.read(plain.make("x", 1 << 20, seed=7), mine).wait(WAIT)
            assert _DOUBLE.read(mine) == pattern(7, 1 << 20).tobytes()
            transfer = near.write(mine, plain.make("y", 1 << 20))
            transfer.wait(WAIT)
            assert plain.content("y") == _DOUBLE.read(mine)
            assert (transfer.provider, transfer.path) == ("staged", "staged over tcp")
        _DOUBLE.free(mine.data_ptr())

    def test_require_forbids_it(self, far: FarSide) -> None:
        """B10, K9: a typed error that says which setting is in the way."""
        settings = Settings.from_env(**_DOUBLE.settings(), gpu_direct="require")
        theirs = far.make("x", 100)
        strict = Engine(settings=settings, providers=("tcp", "staged"))
        with strict, pytest.raises(Unavailable, match="staged: gpu_direct is require"):
            strict.read(theirs, np.zeros(100, np.uint8)).wait(WAIT)


class TestOverShm(_Rules):
    way = _way("ipc", "shm")


def test_over_verbs_that_have_no_gpu_direct(gpu: GpuDouble, engine: Any) -> None:
    """What no NIC may touch goes by RDMA between pinned memory at both ends."""
    near, far = engine(("verbs", "staged"), gpu_direct="off"), engine(("verbs", "staged"))
    source, target = gpu.new((3 << 20,)), gpu.new((3 << 20,))
    gpu.write(source, pattern(8, 3 << 20).tobytes())
    region = far.register(target)
    transfer = near.write(source, region.remote())
    transfer.wait(WAIT)
    assert (transfer.provider, transfer.path) == ("staged", "staged over verbs")
    assert gpu.read(target) == gpu.read(source)
