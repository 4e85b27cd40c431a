"""A witness that we did not write: NVIDIA's Python bindings, with NVIDIA's declarations, drive the
double of its driver, and our room finds the same driver beside them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import fakecuda
import pytest

pytest.importorskip("cuda.bindings", reason="could not import 'cuda-bindings'")

_WITNESS = Path(fakecuda.__file__).with_name("cuda_witness.py")

_BESIDE = """
from cuda.bindings import driver as cu
assert cu.cuInit(0)[0] == cu.CUresult.CUDA_SUCCESS
from transport.config import Settings
from transport.memory import driver
driver.choose(Settings.from_env())
found = driver.driver()
print(found.platform, found.version, found.file, len(found.devices))
lines = open("/proc/self/maps").read().splitlines()
print(len({line.split()[-1] for line in lines if "fakecuda" in line or "libcuda" in line}))
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The double under the name that NVIDIA's packages look for."""
    (tmp_path / "libcuda.so.1").symlink_to(fakecuda.library())
    return os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "FAKEGPU": ""}


@pytest.mark.parametrize("version", [12080, 13050])
def test_two_processes_share_memory(environ: dict[str, str], version: int) -> None:
    environ["FAKEGPU"] = f"version={version} delay_us=200"
    ends = socket.socketpair()
    roles = ("owner", "user")
    running = [
        subprocess.Popen(
            [sys.executable, str(_WITNESS), role, str(end.fileno())],
            env=environ,
            pass_fds=[end.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        for role, end in zip(roles, ends, strict=True)
    ]
    for end in ends:
        end.close()
    errors = [each.communicate(timeout=60)[1] for each in running]
    assert [each.returncode for each in running] == [0, 0], "\n".join(errors)


def test_what_is_loaded_is_adopted(environ: dict[str, str], tmp_path: Path) -> None:
    """One driver in the process: the one that the bindings have loaded."""
    done = subprocess.run(
        [sys.executable, "-c", _BESIDE], env=environ, capture_output=True, text=True, check=True
    )
    facts, files = done.stdout.splitlines()
    assert facts == f"cuda 12.8 {tmp_path}/libcuda.so.1 2"
    assert files == "1"
