"""GPU memory of every size and make under a NIC: more than 32 bits of it, more chunks than a work
request has entries, and what its owner frees too early.

"GPU" memory is the driver double's, the NIC is the double of libibverbs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from expandable import Expandable

from transport.errors import TransferError
from transport.testing.servant import pattern as _numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from fakeverbs import Double
    from gpu_double import GpuDouble

    from transport import Engine

WAIT = 30.0
MIB = 1 << 20
GIB = 1 << 30


def pattern(count: int, seed: int = 1) -> bytes:
    return _numbers(seed, count).tobytes()


@pytest.mark.parametrize("nbytes", [2 * GIB + 4096, 5 * GIB])
def test_more_than_32_bits(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine], nbytes: int
) -> None:
    """M#2572, M#1367: one registration of all of it, and bytes beyond 2 and 4 GiB."""
    near, far = engine(), engine()
    base = gpu.alloc(nbytes)
    region = far.register(gpu.tensor(base, (nbytes,)))
    assert "1 registration through dma-buf" in region.explain()[0]
    assert double.get("dmabuf_length") == nbytes
    for at in {2 * GIB - 500, min(4 * GIB, nbytes) - 500, nbytes - 1000}:
        size = min(1000, nbytes - at)
        remote = region.remote()[at : at + size]
        near.write(bytearray(pattern(size, at % 251)), to=remote).wait(WAIT)
        assert gpu.bytes_at(base + at, size) == pattern(size, at % 251)
        back = bytearray(size)
        near.read(remote, into=back).wait(WAIT)
        assert bytes(back) == pattern(size, at % 251)
    region.close()
    gpu.free(base)


def test_more_chunks_than_entries_of_a_request(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine]
) -> None:
    """M#4410, and B11, M#4547: odd sizes at odd places of a segment that grows by chunks."""
    double.put("max_sge", 4)
    near, far = engine(), engine()
    with Expandable(gpu, most=12) as segment:
        segment.grow(12)
        chunk = segment.chunk
        for start, nbytes in ((12, 1), (chunk - 3, 12), (516, chunk + 1), (4100, 11 * chunk)):
            there = gpu.tensor(segment.address + start, (nbytes,))
            data = pattern(nbytes, start % 251)
            with far.register(there) as region:
                near.write(bytearray(data), to=region.remote()).wait(WAIT)
                assert gpu.bytes_at(segment.address + start, nbytes) == data
        here = gpu.tensor(segment.address + 4100, (11 * chunk,))  # gathered from all chunks
        target = bytearray(11 * chunk)
        near.write(here, to=far.register(target).remote()).wait(WAIT)
        assert target == data
        near.close(), far.close()


def test_the_last_chunk_costs_what_the_first_does(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine]
) -> None:
    """M#4756: neither the driver nor the NIC is asked about the rest of the segment."""
    far = engine()
    calls = [("cuMemGetHandleForAddressRange", "hipMemGetHandleForAddressRange")]
    calls += [("cuPointerGetAttributes", "hipPointerGetAttributes")]
    calls += [("cuMemGetAddressRange_v2", "hipMemGetAddressRange")]

    def cost(index: int) -> list[int]:
        before = [gpu.calls(*names) for names in calls] + [double.get("registrations")]
        address = segment.address + index * segment.chunk
        far.register(gpu.tensor(address + 512, (1000,))).close()
        after = [gpu.calls(*names) for names in calls] + [double.get("registrations")]
        return [late - early for early, late in zip(before, after, strict=True)]

    with Expandable(gpu, most=64) as segment:
        segment.grow(64)
        cost(0)
        first = cost(1)
        assert first[-1] == 1
        assert sum(first[:-1]) > 0
        assert cost(63) == first
        far.close()


def test_no_bytes(gpu: GpuDouble, engine: Callable[..., Engine]) -> None:
    """M#1133: a tensor without elements is no special case."""
    near, far = engine(), engine()
    region = far.register(gpu.new((0,)))
    near.write(gpu.new((0,)), to=region.remote()).wait(WAIT)
    near.read(region.remote(), into=bytearray()).wait(WAIT)


def test_freed_before_its_region_is_closed(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine]
) -> None:
    """B22: what is at the address afterwards is not reached by the old handle, and the region can
    still be closed.
    """
    near, far = engine(), engine()
    address = gpu.alloc(MIB)
    region = far.register(gpu.tensor(address, (64,)))
    remote = region.remote()
    near.write(bytearray(pattern(64)), to=remote).wait(WAIT)
    gpu.free(address)
    taken = [gpu.alloc(MIB)]
    while taken[-1] != address and len(taken) < 100:
        taken.append(gpu.alloc(MIB))
    assert taken[-1] == address, "the double never gave the address again"
    gpu.put(address, bytes(64))
    with contextlib.suppress(TransferError):  # a NIC may know
        near.write(bytearray(pattern(64, 9)), to=remote).wait(WAIT)
    assert gpu.bytes_at(address, 64) == bytes(64)
    mrs = double.get("mrs")
    region.close()
    assert double.get("mrs") == mrs - 1
