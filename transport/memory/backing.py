"""What lies behind the memory of a region: the pool, a file that somebody may truncate, or neither.

May import ffi. Memory that is shared already (torch's share_memory_(), a memfd, a file in /dev/shm,
safetensors' mapped files) is registered as it lies. As its owner may truncate it, no engine touches
it but through the kernel, and where it has ended a transfer fails with StaleRegion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transport.errors import Status
from transport.ffi import ffi, lib, text

_OUT = ffi.typeof("struct tn_backing *")


@dataclass(frozen=True, slots=True)
class Backing:
    """Where the bytes of some memory come from.

    `kind` is "pool" (peers on this host map it), "file" (which they read by process_vm or through
    the stream, never by mapping it), "gpu" (which no CPU touches) or "private". The rest is of a
    "file": its path as /proc/self/maps has it ("/memfd:name (deleted)" for one without a name), its
    device and inode, and where in it the memory begins.
    """

    kind: str
    writable: bool = True
    path: str = ""
    device: int = 0  # major number << 32 | minor number
    inode: int = 0
    offset: int = 0


POOL = Backing("pool")
PRIVATE = Backing("private")
GPU = Backing("gpu")
_READ_ONLY = Backing("private", writable=False)


def backing_of(address: int, length: int) -> Backing:
    """Of memory that is not the pool's. Without /proc all is private."""
    if not length:
        return PRIVATE
    found: Any = ffi.new(_OUT)
    if lib.tn_memory_backing(ffi.cast("void *", address), length, found) != Status.OK:
        return PRIVATE
    writable = bool(found.writable)
    if not found.inode:
        return PRIVATE if writable else _READ_ONLY
    path = text(found.path)
    return Backing("file", writable, path, found.device, found.inode, found.offset)
