"""Drives raw_copy.c: the same blocks as a transfer moves, by memcpy or process_vm from C."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE = Path(__file__).resolve().parent
_BUILT = _HERE.parent.parent / "build" / "baselines" / "raw_copy.so"


def build() -> Path:
    """Compiles it where the source is newer; needs a C compiler called cc."""
    source = _HERE / "raw_copy.c"
    if not _BUILT.exists() or _BUILT.stat().st_mtime < source.stat().st_mtime:
        _BUILT.parent.mkdir(parents=True, exist_ok=True)
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", str(_BUILT), str(source)], check=True)
    return _BUILT


class RawCopy:
    """Blocks of `size` bytes at the same `offsets` on both sides."""

    def __init__(self, size: int, offsets: Sequence[int] = (0,)) -> None:
        self._library = ctypes.CDLL(str(build()))
        self._size = ctypes.c_uint64(size)
        self._offsets = (ctypes.c_uint64 * len(offsets))(*offsets)

    def memcpy(self, to: int, source: int, turns: int) -> list[int]:
        """Nanoseconds of each of `turns` copies of all blocks between two addresses here."""
        return self._call(self._library.raw_memcpy, turns, (to, source))

    def process_vm(self, pid: int, op: str, local: int, remote: int, turns: int) -> list[int]:
        """As memcpy, to or from the memory of another process. Raises OSError."""
        write = ctypes.c_int(op == "write")
        return self._call(self._library.raw_process_vm, turns, (local, remote), pid, write)

    def _call(self, function: Any, turns: int, where: tuple[int, int], *first: Any) -> list[int]:
        ns = (ctypes.c_uint64 * turns)()
        addresses = [ctypes.c_uint64(address) for address in where]
        count, times = ctypes.c_uint64(len(self._offsets)), ctypes.c_uint64(turns)
        code = function(*first, *addresses, self._offsets, count, self._size, times, ns)
        if code:
            raise OSError(code, f"a raw copy: {os.strerror(code)}")
        return list(ns)
