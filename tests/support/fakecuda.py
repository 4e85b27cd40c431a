"""The doubles of the GPU drivers (native/fakes/fakecuda, fakehip), as a test handles them.

A process has one driver, so a test either runs in a process of its own (`environment`), or loads
the double once for all (`Double`). May import the standard library only.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


def library(platform: str = "cuda") -> str:
    """The file of the double: "cuda" or "rocm"."""
    name = "fakecuda.so" if platform == "cuda" else "fakehip.so"
    return str(Path(os.environ["TN_FAKES"]) / name)


def environment(platform: str = "cuda", **knobs: int | str) -> dict[str, str]:
    """Variables for a process whose driver is to be the double, with these knobs."""
    path = library(platform)
    own = {"FAKEGPU": " ".join(f"{name}={value}" for name, value in knobs.items())}
    if platform == "cuda":
        return own | {"TRANSPORT_CUDA_LIB": path}
    return own | {"TRANSPORT_HIP_LIB": path, "TRANSPORT_HSA_LIB": path}


class Double:
    """The double in this process; $FAKEGPU is read when it is first called."""

    def __init__(self, platform: str = "cuda") -> None:
        self.path = library(platform)
        self.functions = ctypes.CDLL(self.path)
        self.functions.fakegpu_ctl.argtypes = [ctypes.c_char_p, ctypes.c_long]
        self.functions.fakegpu_ctl.restype = ctypes.c_long
        self.functions.fakegpu_get.argtypes = [ctypes.c_char_p]
        self.functions.fakegpu_get.restype = ctypes.c_long
        self.functions.fakegpu_set.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        self.functions.fakegpu_set.restype = None
        self.functions.fakegpu_fail.argtypes = [ctypes.c_char_p, *[ctypes.c_long] * 3]
        self.functions.fakegpu_fail.restype = None
        self.functions.fakegpu_peek.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
        self.functions.fakegpu_peek.restype = ctypes.c_void_p

    def set(self, **knobs: int) -> None:
        for name, value in knobs.items():
            self.functions.fakegpu_ctl(name.encode(), value)

    def put(self, name: str, text: str) -> None:
        self.functions.fakegpu_set(name.encode(), text.encode())

    def get(self, name: str) -> int:
        return int(self.functions.fakegpu_get(name.encode()))

    def fail(self, function: str, code: int, *, after: int = 0, count: int = 1) -> None:
        """After so many calls of the function so many (-1: all) end with the driver's code."""
        self.functions.fakegpu_fail(function.encode(), after, count, code)

    def read(self, address: int, size: int) -> bytes:
        """Bytes of device memory, as they are now."""
        at = self.functions.fakegpu_peek(address, size)
        if not at:
            raise ValueError(f"0x{address:x} is not mapped for {size} bytes")
        found = ctypes.string_at(at, size)
        page = os.sysconf("SC_PAGESIZE")
        first = at // page * page
        ctypes.CDLL(None).munmap(ctypes.c_void_p(first), ctypes.c_size_t(at + size - first))
        return found

    def reset(self) -> None:
        self.functions.fakegpu_reset()
