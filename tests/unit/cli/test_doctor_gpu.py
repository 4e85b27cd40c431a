"""What doctor says of GPUs: the driver, its file, its devices, or the reason why there is none.

Each report is made by a process of its own, for a process has one driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fakecuda
import pytest
import sysfs_tree

from transport.cli.doctor_gpu import _loaded, _torch

if TYPE_CHECKING:
    from pathlib import Path


def report(tmp_path: Path, **environ: str) -> dict[str, Any]:
    """The section's findings by name."""
    own = {"TRANSPORT_VERBS_SYSFS": str(sysfs_tree.expand("eight_gpus", tmp_path / "sys"))}
    done = subprocess.run(
        [sys.executable, "-m", "transport", "doctor", "--json", "--no-test"],
        env=os.environ | own | environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    findings = json.loads(done.stdout)["findings"]
    return {each["name"]: each for each in findings if each["section"] == "gpu"}


def test_a_cuda_driver(tmp_path: Path) -> None:
    found = report(tmp_path, **fakecuda.environment(version=13050))
    assert found["driver"]["state"] == "ok"
    assert found["driver"]["value"] == f"CUDA 13.5, 2 GPUs: {fakecuda.library()}"
    assert "driver lacks" not in found
    assert found["cuda:1"]["value"].startswith("Fake GPU 1, 0000:2b:00.0")
    assert found["cuda:0 memory"]["value"] == "pieces of 2 MiB, shared by descriptor"
    assert found["cuda:0 and NICs"]["value"].startswith("dma-buf")
    assert found["cuda:0 NIC writes"]["value"] == "flushed after each receive"


@pytest.mark.parametrize(
    ("number", "text"), [(50221153, "5.2.21153"), (60443484, "6.4.43484"), (70051831, "7.0.51831")]
)
def test_a_rocm_runtime(tmp_path: Path, number: int, text: str) -> None:
    found = report(tmp_path, **fakecuda.environment("rocm", version=number))
    assert found["driver"]["value"] == f"ROCm, HIP {text}, 2 GPUs: {fakecuda.library('rocm')}"
    assert found["rocm:0"]["state"] == "ok"
    assert "rocm:0 NIC writes" not in found


def test_what_an_old_driver_lacks(tmp_path: Path) -> None:
    found = report(tmp_path, **fakecuda.environment(version=11060))
    assert found["driver lacks"]["state"] == "note"
    assert "cuMemGetHandleForAddressRange" in found["driver lacks"]["value"]
    # The recorded machine has a module for peer memory.
    assert found["cuda:0 and NICs"]["value"] == "peer memory (nvidia_peermem)"


def test_a_permuted_view_goes_by_pci_address(tmp_path: Path) -> None:
    """I4: numbers of this process, places of the machine."""
    pci = {"pci.0": "00000000:45:00.0", "pci.1": "00000000:C4:00.0"}
    environ = fakecuda.environment(**pci) | {"CUDA_VISIBLE_DEVICES": "1,0"}
    found = report(tmp_path, **environ)
    assert "0000:c4:00.0 (gpu" in found["cuda:0"]["value"]
    assert "0000:45:00.0 (gpu" in found["cuda:1"]["value"]
    assert found["CUDA_VISIBLE_DEVICES"]["state"] == "note"


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        (fakecuda.environment(stub=1), "stub for linking"),
        (fakecuda.environment(devices=0), "it sees no GPU"),
        (fakecuda.environment("rocm", devices=0), "it sees no GPU"),
        (fakecuda.environment(hide="cuStreamCreate"), "lacks the function cuStreamCreate"),
        (fakecuda.environment() | {"GPU_PLATFORM": "rocm"}, "GPU_PLATFORM=rocm is asked for"),
        (fakecuda.environment("rocm") | {"GPU_PLATFORM": "cuda"}, "GPU_PLATFORM=cuda is asked for"),
        ({"TRANSPORT_CUDA_LIB": "/nowhere/libcuda.so"}, "/nowhere/libcuda.so"),
    ],
)
def test_a_driver_that_cannot_be_used_is_told(
    tmp_path: Path, environ: dict[str, str], word: str
) -> None:
    found = report(tmp_path, **environ)
    assert found["driver"]["state"] == "missing"
    assert word in found["driver"]["value"]
    assert found["driver"]["remedy"]


def test_none_is_wanted(tmp_path: Path) -> None:
    found = report(tmp_path, **fakecuda.environment() | {"GPU_PLATFORM": "none"})
    assert found["driver"]["state"] == "ok"
    assert "GPU_PLATFORM=none" in found["driver"]["value"]


def test_every_loaded_library_is_listed(tmp_path: Path) -> None:
    """Is this build on HIP or on CUDA?"""
    maps = tmp_path / "proc/self/maps"
    maps.parent.mkdir(parents=True)
    line = "7f0000000000-7f0000001000 r-xp 00000000 08:01 1234  "
    files = ["/opt/rocm/lib/libamdhip64.so.6.4.43484", "/a/torch/lib/libtorch_hip.so"]
    others = ["/lib/libc.so.6", "[heap]", "/a/libcudart-1a2b3c4d.so.12.1"]
    maps.write_text("".join(f"{line}{path}\n" for path in files + others + files))
    found = [finding.value for finding in _loaded(tmp_path)]
    assert found == sorted([*files, others[2]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
         "2.9.0+cu128, built for CUDA 12.8"),
        ("__version__ = '2.9.0+rocm6.4'\ncuda: Optional[str] = None\nhip: str = '6.4.43484'\n",
         "2.9.0+rocm6.4, built for ROCm 6.4.43484; brings its own libamdhip64.so"),
        ("__version__ = '2.13.0+cpu'\ncuda = None\nhip = None\n",
         "2.13.0+cpu, built for the CPU alone"),
    ],
)  # fmt: skip
def test_what_torch_was_built_for(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "version.py").write_text(text)
    if "rocm" in text:
        (tmp_path / "lib/libamdhip64.so").touch()
    (found,) = _torch(SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    assert found.value.startswith(words)
    assert list(_torch(None)) == []
