"""GPU memory over the doubles of the drivers and of libibverbs.

A process has one GPU driver: `make gpu` runs this folder twice, the second time with
TN_GPU_DOUBLE=rocm.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_double import GpuDouble

    from transport import Engine


@pytest.fixture
def gpu() -> Iterator[GpuDouble]:
    """The driver that the package uses in this test, set back to its beginning."""
    from gpu_double import GpuDouble  # not before TN_FAKES is set

    double = GpuDouble(os.environ.get("TN_GPU_DOUBLE", "cuda"))
    double.begin()
    yield double
    double.ctl("hold", 0)
    double.library.fakegpu_reset()


@pytest.fixture
def engine(gpu: GpuDouble, double: Any) -> Iterator[Callable[..., Engine]]:
    """Makes engines that reach each other by the double of libibverbs only."""
    from fakeverbs import LIBRARY

    from transport import Engine
    from transport.config import Settings

    double.put("dmabuf_errno", 0)
    made: list[Engine] = []
    regions: list[Any] = []  # they end with their engine, not with the test's variables

    class Keeping(Engine):
        def register(self, x: Any, **options: Any) -> Any:
            regions.append(super().register(x, **options))
            return regions[-1]

    def make(providers: tuple[str, ...] = ("verbs",), **settings: Any) -> Engine:
        one = Keeping(
            providers=providers,
            listen="127.0.0.1:0",
            secret="a secret of this test run only",
            settings=Settings.from_env(**gpu.settings(), verbs_lib=LIBRARY, **settings),
        )
        made.append(one)
        return one

    yield make
    gpu.ctl("hold", 0)
    for one in made:
        one.close()


@pytest.fixture
def descriptors() -> Callable[[], int]:
    return lambda: len(list(Path("/proc/self/fd").iterdir()))
