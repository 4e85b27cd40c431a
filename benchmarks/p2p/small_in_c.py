"""Builds small_in_c.c with the C compiler and calls it with the engine's own functions."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.ffi import ffi, lib

if TYPE_CHECKING:
    from transport.engine.prepared import Prepared

_SOURCE = Path(__file__).with_name("small_in_c.c")


class _Calls(ctypes.Structure):
    _fields_ = [("run", ctypes.c_void_p), ("now", ctypes.c_void_p)]


def _address(name: str) -> int:
    return int(ffi.cast("uintptr_t", ffi.addressof(lib, name)))


class SmallInC:
    """The loops; each returns the nanoseconds of every turn."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder) / "small_in_c.so"
            command = ["gcc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-o", str(built)]
            subprocess.run([*command, str(_SOURCE)], check=True)
            self._library = ctypes.CDLL(str(built))
        self._calls = _Calls(_address("tn_transfer_run"), _address("tn_now"))

    def single(self, prepared: Prepared, count: int) -> list[int]:
        return self._loop(self._library.small_single, prepared, count)

    def pingpong(
        self, prepared: Prepared, count: int, ball: int, hole: int, *, serves: bool
    ) -> list[int]:
        """`ball` and `hole` are the addresses of what is sent and of where it comes."""
        ends = ctypes.c_void_p(ball), ctypes.c_void_p(hole), ctypes.c_int(serves)
        return self._loop(self._library.small_pingpong, prepared, count, *ends)

    def _loop(self, loop: Any, prepared: Prepared, count: int, *more: Any) -> list[int]:
        ns = (ctypes.c_uint64 * count)()
        transfer = ctypes.c_void_p(int(ffi.cast("uintptr_t", prepared._flights[0].pointer)))
        status = loop(ctypes.byref(self._calls), transfer, ctypes.c_uint64(count), ns, *more)
        if status:
            raise SystemExit(f"a run from C ended with status {status}")
        return list(ns)
