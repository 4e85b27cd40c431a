"""The GPU driver of this process: whose it is, from which file, and its devices.

May import config, errors and ffi. Nothing here opens a driver before it is asked for one.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse
from transport.ffi import check, ffi, lib, text

if TYPE_CHECKING:
    from transport.config import Settings

_PLATFORMS: dict[str, int] = {
    "none": lib.TN_GPU_NONE,
    "cuda": lib.TN_GPU_CUDA,
    "rocm": lib.TN_GPU_ROCM,
    "any": lib.TN_GPU_ANY,
}
_LONGEST_PATH = 511


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """`ordinal` counts as the driver does in this process, after CUDA_VISIBLE_DEVICES and its like;
    `address` (PCI, as sysfs spells it) and `uuid` are the same in every process.
    """

    ordinal: int
    name: str
    address: str
    uuid: str
    granularity: int  # bytes, of physical memory; 0: none can be made
    virtual_memory: bool
    share_by_fd: bool
    direct_rdma: bool
    direct_rdma_virtual: bool
    dmabuf: bool
    integrated: bool
    large_bar: bool
    flush_options: int  # as CUDA numbers them; -1: unknown
    writes_ordering: int


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """What is open. `missing`: optional functions that the library lacks."""

    platform: str  # "cuda", "rocm"
    version: str
    file: str
    missing: tuple[str, ...]
    devices: tuple[GpuDevice, ...]


def choose(settings: Settings) -> None:
    """Which driver this process is to use; opens none.

    Raises InvalidUse where another one is open already: there is one in a process.
    """
    choice: Any = ffi.new("struct tn_gpu_choice *")
    choice.platform = _PLATFORMS[settings.gpu_platform]
    for name in ("cuda", "hip", "hsa"):
        path = os.fsencode(getattr(settings, f"{name}_lib") or "")
        if len(path) > _LONGEST_PATH:
            raise InvalidUse(f"TRANSPORT_{name.upper()}_LIB is longer than {_LONGEST_PATH} bytes")
        setattr(choice, f"{name}_library", path)
    check(lib.tn_gpu_choose(choice))


def driver() -> GpuDriver:
    """The driver of this process, opened now if it is not. Raises Unavailable with the reason."""
    out: Any = ffi.new("const struct tn_gpu_driver_facts **")
    check(lib.tn_gpu_driver(out))
    facts = out[0]
    platform = "cuda" if facts.platform == lib.TN_GPU_CUDA else "rocm"
    return GpuDriver(
        platform=platform,
        version=version_text(platform, facts.version),
        file=text(facts.file),
        missing=tuple(text(facts.missing).split()),
        devices=tuple(gpu_device(ordinal) for ordinal in range(facts.devices)),
    )


def version_text(platform: str, number: int) -> str:
    """ "12.4" for CUDA's 12040, "6.4.43484" for HIP's 60443484."""
    if platform == "cuda":
        return f"{number // 1000}.{number % 1000 // 10}"
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


def gpu_device(ordinal: int) -> GpuDevice:
    """One of the driver's. Raises Unavailable without a driver, InvalidUse for no device."""
    facts: Any = ffi.new("struct tn_gpu_device_facts *")
    check(lib.tn_gpu_device(ordinal, facts))
    return GpuDevice(
        ordinal=ordinal,
        name=text(facts.name),
        address=text(facts.pci),
        uuid=str(uuid.UUID(bytes=bytes(facts.uuid))),
        granularity=facts.granularity,
        virtual_memory=facts.virtual_memory,
        share_by_fd=facts.share_by_fd,
        direct_rdma=facts.direct_rdma,
        direct_rdma_virtual=facts.direct_rdma_virtual,
        dmabuf=facts.dmabuf,
        integrated=facts.integrated,
        large_bar=facts.large_bar,
        flush_options=facts.flush_options,
        writes_ordering=facts.writes_ordering,
    )
