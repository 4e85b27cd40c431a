"""Order with GPU streams: what a transfer of GPU memory waits for, and what waits for it.

May import core, streams and ffi. Within the engine's gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.engine.streams import current_stream, stream_of
from transport.ffi import check, ffi, lib

if TYPE_CHECKING:
    from collections.abc import Collection

    from transport.engine.core import Core

_MOMENTS = ffi.typeof("struct tn_moment[]")
_OUT = ffi.typeof("struct tn_fence **")

AFTER_NOTHING: Any = object()
"""As `stream`: the memory is known to be ready, and nothing is waited for."""


def fence(core: Core, devices: Collection[int], given: Any) -> Any:
    """What a transfer between memory of these GPUs waits for, as `struct tn_fence *`.

    `given` is the caller's stream; without one it is the current stream of each GPU. NULL where
    nothing is to be waited for. The caller closes it.
    """
    if given is AFTER_NOTHING:
        return ffi.NULL
    if given is not None:
        stream = stream_of(given)
        at = stream.device if stream.device is not None else min(devices, default=0)
        moments = [(stream.handle, at)]
    elif devices:
        moments = [(current_stream(device), device) for device in sorted(devices)]
    else:
        return ffi.NULL
    out = ffi.new(_OUT)
    check(lib.tn_fence_open(core.native.pointer, ffi.new(_MOMENTS, moments), len(moments), out))
    return out[0]


def close(opened: Any) -> None:
    """Lets go of a fence, or of NULL; the transfers that have it keep it."""
    if opened:
        lib.tn_fence_close(opened)
