"""Streams of GPUs, as callers name them.

May import errors. Never imports torch: a torch stream can only come from who has.
"""

from __future__ import annotations

import operator
import sys
from typing import Any, NamedTuple

from transport.errors import InvalidUse

_MOST = 1 << 64
_MOST_DEVICES = 1 << 31


class Stream(NamedTuple):
    """A stream as the driver knows it; 0 is the device's default one."""

    handle: int
    device: int | None  # None: it did not tell


def stream_of(given: Any) -> Stream:
    """A torch stream, an object with `__cuda_stream__`, or a raw handle. Raises InvalidUse."""
    if isinstance(given, Stream):
        return given
    raw, device = given, None
    if hasattr(given, "cuda_stream"):  # torch's, of CUDA and of ROCm
        raw = given.cuda_stream
        device = _ordinal(getattr(getattr(given, "device", None), "index", None))
    elif hasattr(type(given), "__cuda_stream__"):
        version, raw = _protocol(given)
        if version != 0:
            raise InvalidUse(f"version {version!r:.80} of __cuda_stream__ is unknown here")
    handle = -1 if isinstance(raw, bool) else _integer(raw)
    if not 0 <= handle < _MOST:
        raise InvalidUse(
            "a stream is a torch stream, an object with __cuda_stream__, or its handle as a"
            f" number, not {given!r:.80}"
        )
    return Stream(handle, device)


def _integer(given: Any) -> int:
    """-1 where it is none."""
    try:
        return operator.index(given)
    except TypeError:
        return -1


def _ordinal(given: Any) -> int | None:
    if given is None:
        return None
    device = _integer(given)
    if not 0 <= device < _MOST_DEVICES:
        raise InvalidUse(f"there is no GPU {given!r:.80}, which the stream says it is on")
    return device


def _protocol(given: Any) -> tuple[Any, Any]:
    told = given.__cuda_stream__()
    try:
        version, raw = told
    except (TypeError, ValueError):
        raise InvalidUse(
            f"__cuda_stream__() of a {type(given).__name__} gave {told!r:.80}, not a version and"
            " a handle"
        ) from None
    return version, raw


def current_stream(device: int) -> int:
    """torch's current stream where torch is in use, else the device's default one."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return int(cuda.current_stream(device).cuda_stream)
