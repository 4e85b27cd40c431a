"""Raw process_vm_readv through ctypes: what the kernel copies between two processes, at best."""

from __future__ import annotations

import ctypes
import os


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
_readv.restype = ctypes.c_ssize_t
_readv.argtypes = [
    ctypes.c_int,
    ctypes.POINTER(_Iovec),
    ctypes.c_ulong,
    ctypes.POINTER(_Iovec),
    ctypes.c_ulong,
    ctypes.c_ulong,
]


def read(pid: int, remote: int, local: int, size: int) -> None:
    """Copies `size` bytes from an address of another process; the kernel may stop short."""
    done = 0
    while done < size:
        here, there = _Iovec(local + done, size - done), _Iovec(remote + done, size - done)
        count = _readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if count <= 0:
            code = ctypes.get_errno()
            raise OSError(code, f"process_vm_readv: {os.strerror(code)}")
        done += count
