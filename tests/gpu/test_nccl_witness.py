"""NVIDIA's own NCCL where there is no GPU: it is opened, it says what it is, and that it has no
device is a value. And our declarations beside its header."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from capabilities import require

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "build/nccl/nvidia/nccl"

_ABSENT = None if (ROOT / "build/nccl/.done").exists() else "scripts/nccl-library.sh got none"


@pytest.fixture
def real() -> Path:
    require("nccl", _ABSENT)
    return REAL / "lib/libnccl.so.2"


_LOOK = """
import sys
from transport.collectives.nccl import NcclCarrier, library
from transport.collectives.nccl.library import unique_id
from transport.config import Settings
from transport.errors import TransportError
settings = Settings.from_env()
found = library(settings, "cuda")
print(found.version_text, found.file, found.missing)
print(len(unique_id()), unique_id() != unique_id())
try:
    NcclCarrier(0, 1, 0, lambda data: data, timeout=20.0, settings=settings)
except TransportError as error:
    print(type(error).__name__, str(error)[:200].replace(chr(10), " "))
"""


def look(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _LOOK],
        env=os.environ | {"NCCL_SOCKET_IFNAME": "lo"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()


def test_without_a_gpu(real: Path) -> None:
    facts, ids, error = look(TRANSPORT_NCCL_LIB=str(real), GPU_PLATFORM="cuda")
    assert facts == f"2.32.3 {real} ()"
    assert ids == "128 True"
    kind, _, text = error.partition(" ")
    assert kind == "Unavailable"
    assert "GPU" in text or "libcuda" in text


def test_with_a_driver_that_is_a_double(real: Path) -> None:
    """The library finds that it is none, in its own words."""
    import fakecuda

    link = real.parents[3] / "libcuda.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(fakecuda.library())
    own = fakecuda.environment() | {"LD_LIBRARY_PATH": str(link.parent)}
    error = look(TRANSPORT_NCCL_LIB=str(real), **own)[-1]
    assert error.startswith("NcclError ncclCommInitRankConfig: ncclUnhandledCudaError (1)"), error


_RUNTIME = "typedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n"
_SAME = """
#include <assert.h>
#include <stddef.h>
#include "{header}"
#define SAME(name, value) static_assert((int)(name) == (value), #name)
{lines}
static_assert(sizeof(ncclUniqueId) == 128, "ncclUniqueId");
static_assert(offsetof(ncclConfig_t, magic) == 8 && offsetof(ncclConfig_t, version) == 12 &&
              offsetof(ncclConfig_t, blocking) == 16, "ncclConfig_t");
"""


def test_our_declarations_beside_its_header(real: Path, tmp_path: Path) -> None:
    """Every number of native/abi/nccl.h, in NVIDIA's own words."""
    text = (ROOT / "native/abi/nccl.h").read_text()
    numbers = re.findall(r"\b(nccl[A-Z]\w*) = (\d+)", text)
    numbers += re.findall(r"#define (NCCL_SHRINK_\w+) (\d+)", text)
    assert len(numbers) > 25
    lines = "\n".join(f"SAME({name}, {value});" for name, value in numbers)
    (tmp_path / "cuda_runtime.h").write_text(_RUNTIME)
    (tmp_path / "cuda_fp16.h").write_text("")
    source = tmp_path / "same.c"
    source.write_text(_SAME.format(header=real.parents[1] / "include/nccl.h", lines=lines))
    command = ["gcc", "-fsyntax-only", f"-I{tmp_path}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
