"""Which library this process uses, from where, and what it can do.

May import config, errors, ffi and the GPU driver. Opens nothing before it is asked to.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.errors import Unavailable
from transport.ffi import check, ffi, lib, text
from transport.memory import driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport.config import Settings

CAPABILITIES: dict[str, str] = {
    "begins without blocking": "ncclCommInitRankConfig",
    "finalize": "ncclCommFinalize",
    "factors": "ncclRedOpCreatePreMulSum",
    "split": "ncclCommSplit",
    "shrink": "ncclCommShrink",
    "grow": "ncclCommGrow",
    "revoke": "ncclCommRevoke",
    "registered memory": "ncclCommRegister",
    "windows": "ncclCommWindowRegister",
    "own words for errors": "ncclGetLastError",
}
"""What came with some version, and the function that tells whether a library has it."""


@dataclass(frozen=True, slots=True)
class Library:
    """The library that is open. `missing`: optional functions that it lacks."""

    name: str  # "NCCL", "RCCL"
    version: int  # 23203: 2.32.3; RCCL counts as the NCCL that it is made from
    file: str
    missing: tuple[str, ...]

    @property
    def version_text(self) -> str:
        return f"{self.version // 10000}.{self.version % 10000 // 100}.{self.version % 100}"

    def has(self, capability: str) -> bool:
        """One of CAPABILITIES."""
        return CAPABILITIES[capability] not in self.missing


def library(settings: Settings, platform: str | None = None) -> Library:
    """The library for the GPUs of this process, opened now if it is not: NCCL for CUDA's, RCCL for
    ROCm's. `platform` "cuda" or "rocm" asks for one without a look at the GPUs.

    One library in a process: the first that is opened. Raises Unavailable with the reason, and
    InvalidUse where the settings name another one than is open.
    """
    if platform is None:
        driver.choose(settings)
        platform = driver.driver().platform
    rccl = platform == "rocm"
    explicit = settings.rccl_lib if rccl else settings.nccl_lib
    out: Any = ffi.new("const struct tn_nccl_facts **")
    try:
        check(lib.tn_nccl_library(rccl, os.fsencode(explicit or _nearest(rccl)), out))
    except Unavailable as error:
        raise Unavailable(_reason(rccl, error), _REMEDIES[rccl]) from None
    facts = out[0]
    return Library(
        name="RCCL" if facts.rccl else "NCCL",
        version=facts.version,
        file=text(facts.file),
        missing=tuple(text(facts.missing).split()),
    )


_REMEDIES = {
    False: "pip install nvidia-nccl-cu13 (or cu12, as the driver has it), or TRANSPORT_NCCL_LIB",
    True: "install ROCm's rccl, or TRANSPORT_RCCL_LIB",
}


def _reason(rccl: bool, error: Unavailable) -> str:
    return f"{'RCCL' if rccl else 'NCCL'} cannot be opened: {error.reason}"


def _nearest(rccl: bool) -> str:
    """What torch would load, if it has not yet; "": what is loaded, or the system's."""
    if lib.tn_nccl_loaded(rccl):
        return ""
    return next((str(path) for path in _beside_torch(rccl) if path.exists()), "")


def _beside_torch(rccl: bool) -> Iterator[Path]:
    for package, name in _PLACES[rccl]:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):  # a parent that is not there, or is half loaded
            continue
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield Path(folder) / "lib" / name


_PLACES = {
    False: (("nvidia.nccl", "libnccl.so.2"),),
    True: (("torch", "librccl.so.1"), ("torch", "librccl.so")),
}


def unique_id() -> bytes:
    """Of a group that is to be. Raises NcclError."""
    out: Any = ffi.new("uint8_t[]", ID_BYTES)
    check(lib.tn_nccl_unique_id(out))
    return bytes(out)


ID_BYTES = int(lib.TN_NCCL_ID_BYTES)
