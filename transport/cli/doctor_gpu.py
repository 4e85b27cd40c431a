"""What GPUs this process would use, through which driver and from which file, or why none.

May import finding, facts, config, topology and the driver. Raises nothing for what is absent.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from transport.cli import facts
from transport.cli.finding import Finding, judged
from transport.collectives.nccl.library import CAPABILITIES, library
from transport.errors import TransportError
from transport.memory import driver
from transport.topology import read_machine
from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transport.collectives.nccl.library import Library
    from transport.config import Settings
    from transport.memory.driver import GpuDevice, GpuDriver
    from transport.topology import Machine

_SECTION = "gpu"
_PLATFORMS = {"cuda": "CUDA", "rocm": "ROCm, HIP"}
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# Of drivers, their runtimes and what is built on them, as their files are called.
_LIBRARIES = re.compile(
    r"/lib(cuda|cudart|amdhip64|hsa-runtime64|nccl|rccl|torch_cuda|torch_hip|c10_cuda|c10_hip)"
    r"(-[0-9a-f]+)?\.so[.\d]*$"
)
_NO_DRIVER = (
    "for GPUs: the NVIDIA driver (libcuda.so.1) or ROCm (libamdhip64.so); GPU_PLATFORM, "
    "TRANSPORT_CUDA_LIB and TRANSPORT_HIP_LIB choose"
)


def gpus(settings: Settings, root: Path = facts.ROOT) -> Iterator[Finding]:
    """The driver, its devices, and every GPU library in this process."""
    yield from _torch(importlib.util.find_spec("torch"))
    try:
        driver.choose(settings)
        found = driver.driver()
    except TransportError as error:
        asked = settings.gpu_platform == "none"
        yield Finding(_SECTION, "driver", "ok" if asked else "missing", str(error), _remedy(asked))
    else:
        yield from _driver(found)
        machine = read_machine(settings.verbs_sysfs)
        for device in found.devices:
            yield from _device(found, device, machine)
    yield from _collectives(settings)
    yield from _loaded(root)
    yield from _visible(os.environ)


def _collectives(settings: Settings) -> Iterator[Finding]:
    """NCCL or RCCL; without a GPU driver whichever is here."""
    try:
        wanted = [driver.driver().platform]
    except TransportError:
        wanted = {"any": ["cuda", "rocm"], "none": []}.get(
            settings.gpu_platform, [settings.gpu_platform]
        )
    missing = list[Finding]()
    for platform in wanted:
        name = _COLLECTIVES[platform]
        try:
            found = library(settings, platform)
        except TransportError as error:
            reason, remedy = getattr(error, "reason", str(error)), getattr(error, "remedy", "")
            missing.append(Finding(_SECTION, name, "missing", reason, remedy))
            continue
        yield from _capabilities(found)
        return
    yield from missing


def _capabilities(found: Library) -> Iterator[Finding]:
    yield Finding(_SECTION, found.name, "ok", f"{found.version_text}: {found.file}")
    can = ", ".join(each for each in CAPABILITIES if found.has(each)) or "nothing beyond 2.7"
    yield Finding(_SECTION, f"{found.name} can", "ok", can)
    lacks = ", ".join(each for each in CAPABILITIES if not found.has(each))
    if lacks:
        remedy = "done in other ways, or not at all; a newer one has them"
        yield judged(_SECTION, f"{found.name} lacks", lacks, remedy)


_COLLECTIVES = {"cuda": "NCCL", "rocm": "RCCL"}


def _remedy(asked: bool) -> str:
    return "" if asked else _NO_DRIVER


def _driver(found: GpuDriver) -> Iterator[Finding]:
    count = len(found.devices)
    text = f"{_PLATFORMS[found.platform]} {found.version}, {count} GPU{'s' * (count != 1)}"
    yield Finding(_SECTION, "driver", "ok", f"{text}: {found.file}")
    if found.missing:
        remedy = "what needs them is not used; a newer driver has them"
        yield judged(_SECTION, "driver lacks", " ".join(found.missing), remedy)


def _device(found: GpuDriver, device: GpuDevice, machine: Machine) -> Iterator[Finding]:
    name = f"{found.platform}:{device.ordinal}"
    place = machine.gpu(device.address)
    where = f"{device.address} ({place.name})" if place else device.address
    yield Finding(_SECTION, name, "ok", f"{device.name}, {where}, GPU-{device.uuid}")
    text = f"pieces of {format_bytes(device.granularity)}" if device.granularity else "no pool"
    if device.share_by_fd:
        text += ", shared by descriptor"
    remedy = "" if device.virtual_memory else "memory cannot be shared but by legacy IPC handles"
    yield judged(_SECTION, f"{name} memory", text, remedy)
    yield judged(_SECTION, f"{name} and NICs", *_reach(device, machine))
    if device.writes_ordering >= 0:
        ordered = device.writes_ordering > 0
        text = "ordered by the device" if ordered else "flushed after each receive"
        yield Finding(_SECTION, f"{name} NIC writes", "ok", text)


def _reach(device: GpuDevice, machine: Machine) -> tuple[str, str]:
    """By which ways NICs reach the device's memory; whether they do is tried at registration."""
    ways = ["dma-buf"] if device.dmabuf else []
    if machine.peer_memory:
        ways.append(f"peer memory ({machine.peer_memory})")
    if ways and device.direct_rdma:
        return ", ".join(ways), ""
    remedy = "transfers go through host memory: load nvidia-peermem, or the open kernel modules"
    return "no way that the driver tells of", remedy


def _loaded(root: Path) -> Iterator[Finding]:
    """The files that this process has, whoever loaded them: CUDA's, ROCm's, or both."""
    lines = (facts.read(root / "proc/self/maps") or "").splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    for path in sorted(path for path in paths if _LIBRARIES.search(path)):
        yield Finding(_SECTION, "loaded", "ok", path)


def _torch(spec: object) -> Iterator[Finding]:
    """What the installed torch was built for, without importing it."""
    origin = getattr(spec, "origin", None)
    if not origin:
        return
    folder = Path(origin).parent
    text = facts.read(folder / "version.py") or ""
    told = {name: _told(name, text) for name in ("__version__", "cuda", "hip")}
    built = [
        f"{kind} {told[key]}" for key, kind in (("cuda", "CUDA"), ("hip", "ROCm")) if told[key]
    ]
    words = (
        f"{told['__version__'] or 'unknown'}, built for {' and '.join(built) or 'the CPU alone'}"
    )
    own = sorted(path.name for path in (folder / "lib").glob("libamdhip64*"))
    if own:
        words += f"; brings its own {own[0]}, which is used where torch was imported first"
    yield Finding(_SECTION, "torch", "ok", words)


def _told(name: str, text: str) -> str:
    found = re.search(rf"^{name}\b.*?= '([^']+)'", text, re.MULTILINE)
    return found[1] if found else ""


def _visible(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name in _VISIBLE:
        if name in environ:
            remedy = "it renumbers the GPUs of this process: compare by PCI address"
            yield judged(_SECTION, name, environ[name] or "(empty: hides all)", remedy)
