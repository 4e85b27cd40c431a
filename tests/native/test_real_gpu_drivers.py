"""Real drivers where there is no GPU: NVIDIA's libcuda and AMD's libamdhip64, from packages of
Debian (scripts/gpu-drivers.sh). Their functions are found, and "no device" is a value.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_table import DRIVERS, entries

_LIBRARIES = DRIVERS / "usr/lib/x86_64-linux-gnu"
CUDA = _LIBRARIES / "nvidia/current/libcuda.so.1"
HIP = _LIBRARIES / "libamdhip64.so.5"

_ASK = """
import json
from transport.config import Settings
from transport.errors import TransportError
from transport.memory import driver
driver.choose(Settings.from_env())
try:
    found = driver.driver()
except TransportError as error:
    print(json.dumps([type(error).__name__, str(error)]))
else:
    print(json.dumps([found.platform, found.version, found.file]))
"""


_LACKS = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
print(json.dumps([name for name in sys.argv[2:] if not hasattr(library, name)]))
"""


def real(path: Path) -> str:
    if not path.exists():
        pytest.skip(f"gpu-drivers: scripts/gpu-drivers.sh has fetched no {path.name}")
    if list(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists():
        pytest.skip("gpu-drivers: this machine has a GPU, and these are for one without")
    return str(path)


def apart(words: list[str], **environ: str) -> str:
    """Without the right to make device nodes, for libcuda makes /dev/nvidiactl where it may."""
    tame = ["setpriv", "--bounding-set=-mknod"] if os.getuid() == 0 else []
    own = os.environ | {"LD_LIBRARY_PATH": str(_LIBRARIES)} | environ
    done = subprocess.run(
        [*tame, *words], env=own, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def ask(**environ: str) -> list[str]:
    answer = json.loads(apart([sys.executable, "-c", _ASK], **environ))
    assert not Path("/dev/nvidiactl").exists()
    return [str(word) for word in answer]


def exported(library: str, names: list[str]) -> list[str]:
    """Those of the names that the library lacks."""
    return list(json.loads(apart([sys.executable, "-c", _LACKS, library, *names])))


def test_every_function_is_in_nvidias_driver() -> None:
    library = real(CUDA)
    assert exported(library, [entry.cuda + entry.suffix for entry in entries() if entry.cuda]) == []


def test_every_required_function_is_in_amds_runtime() -> None:
    """5.2 is the oldest that is supported: what it lacks is optional."""
    library = real(HIP)
    missing = exported(library, [entry.hip for entry in entries() if entry.hip])
    required = {entry.hip for entry in entries() if entry.need == "required"}
    assert set(missing) <= {
        "hipLaunchHostFunc", "hipPointerSetAttribute", "hipMemGetHandleForAddressRange",
    }  # fmt: skip
    assert not required & set(missing)


def test_nvidias_driver_without_a_gpu() -> None:
    library = real(CUDA)
    kind, text = ask(TRANSPORT_CUDA_LIB=library, GPU_PLATFORM="cuda")
    assert kind == "Unavailable"
    assert "cuInit: CUDA_ERROR_NO_DEVICE (100)" in text
    assert "it sees no GPU" in text


def test_amds_runtime_without_a_gpu() -> None:
    library = real(HIP)
    kind, text = ask(TRANSPORT_HIP_LIB=library, GPU_PLATFORM="rocm")
    assert kind == "Unavailable"
    assert "hipInit: hipErrorInvalidDevice (101)" in text
    assert "it sees no GPU" in text


def test_both_are_found_by_their_names() -> None:
    """By SONAME on the search path, and the reasons of both are told."""
    real(CUDA)
    real(HIP)
    search = f"{CUDA.parent}:{_LIBRARIES}"
    kind, text = ask(LD_LIBRARY_PATH=search)
    assert kind == "Unavailable"
    assert str(CUDA) in text
    assert str(HIP) in text


def test_the_hsa_runtime_of_5_2_makes_no_dmabufs() -> None:
    library = real(_LIBRARIES / "libhsa-runtime64.so.1")
    assert exported(library, ["hsa_init", "hsa_amd_portable_export_dmabuf"]) == [
        "hsa_amd_portable_export_dmabuf"
    ]
