"""The driver of this process and its devices, over the double; and that a CPU of ours which touches
device memory is found out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import fakecuda
import pytest

from transport.config import Settings
from transport.errors import InvalidUse
from transport.memory import driver

if TYPE_CHECKING:
    from gpu_double import GpuDouble

_TOUCH = """
import ctypes, sys
double = ctypes.CDLL(sys.argv[1])
cuda = hasattr(double, "cuInit")
address = ctypes.c_uint64()
if cuda:
    context = ctypes.c_void_p()
    assert double.cuInit(0) == 0
    assert double.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert double.cuCtxSetCurrent(context) == 0
assert (double.cuMemAlloc_v2 if cuda else double.hipMalloc)(
    ctypes.byref(address), ctypes.c_size_t(4096)) == 0
ctypes.memset(address.value, 1, 1)
"""


def test_facts(gpu: GpuDouble) -> None:
    found = driver.driver()
    assert (found.platform, found.file) == (gpu.platform, gpu.file)
    assert len(found.devices) == 2
    first, second = found.devices
    assert (first.ordinal, first.name, first.address) == (0, "Fake GPU 0", "0000:1b:00.0")
    assert second.uuid.startswith("f1f1f1f1-f1f1")
    assert first.granularity == 2 << 20
    assert first.virtual_memory
    assert first.share_by_fd
    assert first.dmabuf


def test_one_driver_in_a_process(gpu: GpuDouble) -> None:
    driver.driver()
    driver.choose(Settings())  # no wish: content with what there is
    other = "rocm" if gpu.platform == "cuda" else "cuda"
    with pytest.raises(InvalidUse, match="chosen once in a process"):
        driver.choose(Settings(gpu_platform=other))
    assert driver.driver().platform == gpu.platform


@pytest.mark.parametrize(("visible", "status"), [(0, -signal.SIGSEGV), (1, 0)])
def test_a_cpu_that_touches_device_memory_dies(gpu: GpuDouble, visible: int, status: int) -> None:
    """Else a copy by the CPU would pass for one by the device."""
    own = fakecuda.environment(gpu.platform, visible=visible)
    done = subprocess.run(
        [sys.executable, "-c", _TOUCH, gpu.file],
        # Without the handlers of tools, which make another death of it.
        env=os.environ | own | {"PYTHONFAULTHANDLER": "", "ASAN_OPTIONS": "handle_segv=0"},
        check=False,
    )
    assert done.returncode == status
