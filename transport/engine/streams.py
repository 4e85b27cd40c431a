"""Streams of GPUs, as callers name them.

May import errors. Never imports torch: a torch stream can only come from who has.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from transport.errors import InvalidUse

_MOST = 1 << 64


class Stream(NamedTuple):
    """A stream as the driver knows it; 0 is the device's default one."""

    handle: int
    device: int | None  # None: it did not tell


def stream_of(given: Any) -> Stream:
    """A torch stream, an object with `__cuda_stream__`, or a raw handle. Raises InvalidUse."""
    raw, device = given, None
    if hasattr(given, "cuda_stream"):  # torch's, of CUDA and of ROCm
        raw = given.cuda_stream
        device = getattr(getattr(given, "device", None), "index", None)
    elif hasattr(type(given), "__cuda_stream__"):
        version, raw = given.__cuda_stream__()
        if version != 0:
            raise InvalidUse(f"version {version} of __cuda_stream__ is unknown here")
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw < _MOST:
        raise InvalidUse(
            "a stream is a torch stream, an object with __cuda_stream__, or its handle as a"
            f" number, not {given!r:.80}"
        )
    return Stream(raw, device)


def current_stream(device: int) -> int:
    """torch's current stream where torch is in use, else the device's default one."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return int(cuda.current_stream(device).cuda_stream)
