"""gpu_ipc keeps the contract: a GPU's memory in another process of this host, host memory here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gpu_double import GpuDouble

from transport.config import Settings
from transport.errors import Unavailable
from transport.testing.contract import Contract, Way
from transport.testing.contract_data import WAIT
from transport.testing.servant import pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport.engine.engine import Engine
    from transport.testing.contract import FarSide

_PREPARE = "import gpu_far; gpu_far.prepare(servant)"
_DOUBLE = GpuDouble(os.environ.get("TN_GPU_DOUBLE", "cuda"))


def _way(memory: str, path: str) -> Way:
    options: dict[str, Any] = {"settings": Settings.from_env(**_DOUBLE.settings())}
    environment = {"TN_GPU_MEMORY": memory}
    return Way(
        "gpu_ipc", path, near=options, far=options, prepare=_PREPARE, environment=environment
    )


class _Rules(Contract):
    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def driver() -> Iterator[None]:
        with _DOUBLE.leaves_nothing():
            yield

    def test_far_memory_in_threads_of_its_own(self, near: Engine, far: FarSide) -> None:
        """As the contract says, with pool memory here: private memory no GPU maps."""
        mine = near.empty(1 << 20, "uint8")
        mine[:] = pattern(12, 1 << 20)
        with near.register(mine) as region:
            theirs = far.make("x", 1 << 20, seed=13)
            far.begin("read", region.remote(), "x", WAIT)
            into = np.zeros(1 << 20, np.uint8)
            near.read(theirs, into).wait(WAIT)
            far.answer(WAIT)
            assert far.content("x") == mine.tobytes()

    def test_private_memory_goes_through_host_memory(self, near: Engine, far: FarSide) -> None:
        """K9: each way that was not taken has its reason."""
        mine = _DOUBLE.new((100,))
        theirs = far.call("make_private", "x", 100, seed=4)
        transfer = near.read(theirs, mine)
        transfer.wait(WAIT)
        assert (transfer.provider, transfer.path) == ("staged", "staged over shm")
        assert _DOUBLE.read(mine) == pattern(4, 100).tobytes()
        with pytest.raises(Unavailable) as caught:
            near.read(theirs, mine, provider="gpu_ipc").wait(WAIT)
        assert "gpu_ipc: the far memory is private to its process" in str(caught.value)
        assert "shm: not among the allowed providers" in str(caught.value)
        _DOUBLE.free(mine.data_ptr())


class TestPhysical(_Rules):
    way = _way("vmm", "vmm")


class TestLegacy(_Rules):
    way = _way("ipc", "ipc")
