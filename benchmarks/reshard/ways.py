"""What is compared, how each way is driven, and in which environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.baselines.peers.environments import Missing, build, make

if TYPE_CHECKING:
    from pathlib import Path

# Monarch's extension names these; without a driver they must be there and fail.
_DRIVER = ("cuDeviceGet", "cuDeviceGetAttribute", "cuMemGetHandleForAddressRange",
           "cuPointerGetAttribute")  # fmt: skip
_STORES = {"plain": "memcpy", "streaming": "streaming"}
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True)
class Way:
    """A driver and its options.

    phases    what is asked, and of which side ("source", "target" or "both"), one after the other
    alone     its one process has all ranks of both sides
    packages  of an environment of its own; none: the project's
    files     whether it needs a folder in memory
    spins     it uses processors while idle: it is stopped while others have their turn
    """

    name: str
    driver: str
    phases: tuple[tuple[str, str], ...]
    options: dict[str, str] = field(default_factory=dict)
    kind: str = "rival"
    alone: bool = False
    files: bool = False
    spins: bool = False
    packages: tuple[str, ...] = ()


_SAVE_LOAD = (("save", "source"), ("load", "target"))
_TOGETHER = (("sync", "both"),)


def _ours(name: str, memory: str, how: str, phases: tuple[tuple[str, str], ...]) -> Way:
    return Way(name, "drive_ours.py", phases, {"memory": memory, "how": how}, "ours")


def _bare(kind: str) -> Way:
    name = f"bare copies, {kind} stores"
    return Way(name, "drive_bare.py", (("load", "target"),), {"kind": _STORES[kind]}, "limit")


WAYS = (
    _bare("plain"),
    _bare("streaming"),
    _ours("ours, live versions", "pool", "live", (("load", "target"),)),
    _ours("ours, snapshots", "pool", "snapshot", _SAVE_LOAD),
    _ours("ours, plan alone", "pool", "plan", (("load", "target"),)),
    _ours("ours, plan alone, private memory", "private", "plan", (("load", "target"),)),
    Way("gloo all-gather, broadcast, slice", "drive_gloo.py", _TOGETHER, {"how": "gather"}),
    Way("gloo broadcast of shards, slice", "drive_gloo.py", _TOGETHER, {"how": "shards"}),
    Way("safetensors in /dev/shm", "drive_files.py", _SAVE_LOAD, files=True),
    Way("torch.distributed.checkpoint in /dev/shm", "drive_dcp.py", _SAVE_LOAD, files=True),
    Way("torchstore", "drive_torchstore.py", _TOGETHER, alone=True, spins=True,
        packages=("torchstore==0.1.2", "torch==2.9.0", "numpy==2.4.6")),
)  # fmt: skip


def python(way: Way, folder: Path, *, install: bool) -> tuple[str | None, dict[str, str]]:
    """The interpreter (None: this one) and more options. Raises Missing with the reason."""
    if not way.packages:
        return None, {}
    if not install:
        raise Missing("it needs an environment of its own: run without --quick")
    place = folder / way.driver.removeprefix("drive_").removesuffix(".py")
    return str(make(place, way.packages)), _stub(place)


def _stub(place: Path) -> dict[str, str]:
    from ctypes.util import find_library

    if find_library("cuda"):
        return {}
    source = place / "no_driver.c"
    lines = [f"int {name}(void) {{ return {_NO_DEVICE}; }}" for name in _DRIVER]
    source.write_text("\n".join(lines) + "\n")
    stub = place / "stub"
    stub.mkdir(exist_ok=True)
    build(source, stub / "libcuda.so.1", "-Wl,-soname,libcuda.so.1")
    return {"stub": str(stub)}
