"""What the GPU driver of this process says of memory.

May import ffi, errors and device. The driver is asked only about memory that a tensor says is a
GPU's; it is opened at the first such question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from transport.errors import InvalidUse, Unavailable
from transport.ffi import check, ffi, lib
from transport.memory.device import Device
from transport.memory.driver import driver

if TYPE_CHECKING:
    from transport.memory.host import View

_OUT = ffi.typeof("struct tn_device_extent *")

HOST, PINNED, MANAGED, GPU = (
    int(lib.TN_DEVICE_HOST),
    int(lib.TN_DEVICE_PINNED),
    int(lib.TN_DEVICE_MANAGED),
    int(lib.TN_DEVICE_GPU),
)


class Extent(NamedTuple):
    """The allocations that some memory lies in, one after another."""

    kind: int  # HOST (or unknown to the driver), PINNED, MANAGED, GPU
    device: int  # the GPU's ordinal; -1: none
    start: int  # of the first allocation
    nbytes: int  # of all of them
    pieces: int  # how many they are
    identity: int  # another one once any of them is another; 0: the driver cannot tell
    pooled: bool  # in memory that this library took


_EMPTY = Extent(HOST, -1, 0, 0, 0, 0, pooled=False)


def extent_at(address: int, nbytes: int) -> Extent:
    """Of any address; raises InvalidUse where the memory is of several GPUs, or not all there."""
    found = ffi.new(_OUT)
    check(lib.tn_device_extent(address, nbytes, found))
    return Extent(
        found.kind,
        found.device,
        found.base,
        found.bytes,
        found.pieces,
        found.identity,
        bool(found.pooled),
    )


def extent_of(view: View, start: int, nbytes: int) -> Extent:
    """The allocations under the bytes of a view that says that it is a GPU's.

    Raises InvalidUse where the driver knows nothing of it, Unavailable where there is none: then it
    must not be touched.
    """
    if not nbytes:
        return _EMPTY
    found = extent_at(start, nbytes)
    if found.kind in (GPU, MANAGED):
        return found
    _check_driver()
    raise InvalidUse(
        f"the memory says that it is on {view.device}, but the GPU driver of this process knows"
        " nothing of it (freed, or of another platform: see `transport doctor`)"
    )


def device_of(address: int) -> Device:
    """The GPU of an address that something says is a GPU's.

    Raises InvalidUse where it is not, Unavailable where there is no driver to ask.
    """
    found = extent_at(address, 1)
    if found.kind not in (GPU, MANAGED):
        _check_driver()
        raise InvalidUse(f"the memory at {address:#x} is no GPU's, as far as its driver knows")
    return Device("cuda", max(found.device, 0))


def _check_driver() -> None:
    """Raises Unavailable where the driver knows nothing of any memory, for there is none."""
    try:
        driver()
    except Unavailable as error:
        reason = f"the memory is said to be a GPU's, but {error.reason}"
        raise Unavailable(reason, "`transport doctor` tells what this host has") from None


def segments_ended() -> int:
    """How many segments of our own GPU memory were given back to the driver so far."""
    counts: Any = ffi.new("uint64_t[2]")
    lib.tn_device_segment_count(counts, counts + 1)
    return int(counts[1])
