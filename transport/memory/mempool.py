"""`with transport.gpu_pool():` torch's CUDA allocator takes its segments from this library.

May import ffi, device, needs and errors; imports torch when it is used. torch cuts tensors out of
segments by itself. Each segment is memory of the kind that `Engine.empty` gives: shareable with
processes of this host, known to NICs by one registration, however many tensors lie in it.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transport.errors import Unavailable
from transport.ffi import LIBRARY
from transport.memory.device import parse
from transport.memory.needs import needed_torch

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def gpu_pool(device: Any = None) -> Generator[Any]:
    """Within the block this thread's tensors on the GPU (default: torch's current one) lie there.

    Gives the `torch.cuda.MemPool`, which is one for the process and the GPU. Raises Unavailable
    where torch has no GPU allocator that takes another one's memory (2.5 and newer have).
    """
    torch = _torch()
    where = parse(device)
    index = torch.cuda.current_device() if where is None else where.ordinal
    pool = _pool_of(index)
    with torch.cuda.use_mem_pool(pool, device=index):
        yield pool


def _torch() -> Any:
    torch = needed_torch()
    if not torch.cuda.is_available():
        raise Unavailable("this torch sees no GPU", "`transport doctor` tells what the driver says")
    if not hasattr(torch.cuda, "MemPool") or not hasattr(torch.cuda, "use_mem_pool"):
        raise Unavailable(f"torch {torch.__version__} has no memory pools", "use 2.5 or newer")
    return torch


@functools.cache
def _pool_of(index: int) -> Any:
    """Kept for ever: torch takes memory back from a pool when that dies, whoever uses it."""
    import torch

    cuda: Any = torch.cuda
    allocator = cuda.memory.CUDAPluggableAllocator(LIBRARY, "tn_gpu_malloc", "tn_gpu_free")
    _kept.append(allocator)
    return cuda.MemPool(allocator.allocator())


_kept: list[Any] = []
