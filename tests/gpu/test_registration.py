"""How NICs get at GPU memory: the ladder, sub-allocations, chunks, and allocations that go away.

"GPU" memory is the driver double's, the NIC is the double of libibverbs.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from expandable import Expandable

from transport.errors import InvalidUse, NativeError, StaleRegion, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from fakeverbs import Double
    from gpu_double import GpuDouble

    from transport import Engine

WAIT = 30.0
PAGE = 4096
MIB = 1 << 20


def pattern(count: int, seed: int = 1) -> bytes:
    return bytes((i * 7 + (i >> 8) + seed) & 0xFF for i in range(count))


@pytest.mark.parametrize("offset", [0, 4, 512, PAGE + 512, 3 * PAGE + 4, MIB - 12])
def test_sub_allocations(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine], offset: int
):
    """B12, M#3759, M#4285, M#4562, mori#509: offset = address - base, iova = address, anywhere."""
    near, far = engine(), engine()
    base = gpu.alloc(2 * MIB)
    target = gpu.tensor(base + offset, (12,))
    region = far.register(target)
    assert double.get("dmabuf_iova") == base + offset
    assert double.get("dmabuf_offset") % PAGE == (base + offset) % PAGE
    assert double.get("dmabuf_length") == 12
    assert "1 registration through dma-buf" in region.explain()[0]
    source = gpu.new((12,))
    gpu.write(source, pattern(12))
    transfer = near.write(source, to=region.remote()).wait(WAIT)
    assert transfer.provider == "verbs"
    assert gpu.read(target) == pattern(12)
    assert gpu.bytes_at(base + offset + 12, 4) == bytes(4)


def test_round_trip_and_host_memory_on_the_other_side(
    gpu: GpuDouble, engine: Callable[..., Engine]
):
    near, far = engine(), engine()
    target, data = gpu.new((1000, 100), "int32"), pattern(400_000)
    region = far.register(target)
    near.write(bytearray(data), to=region.remote().bytes()).wait(WAIT)
    assert gpu.read(target) == data
    back = gpu.new((1000, 100), "int32")
    near.read(region.remote(), into=back).wait(WAIT)
    assert gpu.read(back) == data
    host = bytearray(400_000)
    near.read(region.remote().bytes(), into=host).wait(WAIT)
    assert bytes(host) == data


def test_strided_tensors(gpu: GpuDouble, engine: Callable[..., Engine]):
    near, far = engine(), engine()
    address = gpu.alloc(4096)
    gpu.put(address, pattern(1024))
    rows = gpu.tensor(address, (8, 16), strides=(128, 1))
    target = gpu.new((8, 16))
    region = far.register(target)
    near.write(rows, to=region.remote()).wait(WAIT)
    wanted = b"".join(pattern(1024)[i * 128 : i * 128 + 16] for i in range(8))
    assert gpu.read(target) == wanted


def test_the_descriptor_is_closed(
    gpu: GpuDouble, engine: Callable[..., Engine], descriptors: Callable[[], int]
):
    far = engine()
    tensor = gpu.new((4096,))
    far.register(tensor).close()
    before = descriptors()
    regions = [far.register(tensor) for _ in range(50)]
    assert descriptors() == before
    for region in regions:
        region.close()


def test_a_thousand_cycles_leave_nothing(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine], descriptors: Callable[[], int]
):
    """B24, torchstore#64: register and free."""
    far = engine()
    names = ("physical", "handles", "mappings", "reservations")

    def cycle() -> None:
        address = gpu.alloc(64 * 1024)
        far.register(gpu.tensor(address + 512, (1024,))).close()
        gpu.free(address)

    for _ in range(10):
        cycle()
    gc.collect()
    before = [gpu.get(name) for name in names], double.get("mrs"), descriptors()
    for _ in range(1000):
        cycle()
    gc.collect()
    assert ([gpu.get(name) for name in names], double.get("mrs"), descriptors()) == before


# ------------------------------------------------------------------------------------- the ladder
def test_peer_memory_where_there_is_no_dmabuf(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine]
):
    """B14, B15: the second rung, and why it was not the first."""
    near, far = engine(), engine()
    double.put("peer_memory", 1)
    gpu.ctl("dmabuf", 0)
    target = gpu.tensor(gpu.alloc(MIB) + 512, (4096,))
    region = far.register(target)
    line = region.explain()[0]
    assert "1 registration through peer memory; " in line, line
    near.write(bytearray(pattern(4096)), to=region.remote()).wait(WAIT)
    assert gpu.read(target) == pattern(4096)
    gpu.ctl("dmabuf", 1)
    double.put("dmabuf_errno", 95)  # EOPNOTSUPP
    region = far.register(gpu.new((4096,)))
    line = region.explain()[0]
    assert "through peer memory; as dma-buf: Operation not supported (the kernel (5.12" in line


def test_when_both_rungs_fail(gpu: GpuDouble, double: Double, engine: Callable[..., Engine]):
    """B14, M#3002, M#3810: each with its reason; an error only where there must be no other way."""
    prefers, requires = engine(), engine(gpu_direct="require")
    double.put("dmabuf_errno", 95)
    double.put("reg_errno", 14)  # EFAULT
    tensor = gpu.new((4096,))
    with pytest.raises(NativeError, match=r"as dma-buf: .*; through peer memory .*Bad address"):
        requires.register(tensor)
    region = prefers.register(tensor)
    line = region.explain()[0]
    assert "not registered: device memory cannot be registered: as dma-buf:" in line
    assert "staged" in region.explain()[-1]


def test_the_setting_off(gpu: GpuDouble, double: Double, engine: Callable[..., Engine]):
    far = engine(gpu_direct="off")
    before = double.get("registrations")
    region = far.register(gpu.new((4096,)))
    assert double.get("registrations") == before
    assert "the setting gpu_direct is off" in region.explain()[0]


def test_managed_memory_is_never_a_nics(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine]
):
    """It could be registered as the host's, and then move away."""
    far, requires = engine(), engine(gpu_direct="require")
    address = gpu.managed(4096)
    tensor = gpu.tensor(address, (4096,))
    before = double.get("registrations")
    assert "managed memory moves" in far.register(tensor).explain()[0]
    assert double.get("registrations") == before
    with pytest.raises(Unavailable, match="gpu_direct is require, but managed memory moves"):
        requires.register(tensor)


def test_large_bar_hint(gpu: GpuDouble, double: Double, engine: Callable[..., Engine]):
    """B16"""
    far = engine(gpu_direct="require")
    double.put("dmabuf_errno", 12)
    double.put("reg_errno", 12)
    with pytest.raises(NativeError, match="BAR1"):
        far.register(gpu.new((4096,)))


def test_copies_and_rdma_keep_their_order(gpu: GpuDouble, engine: Callable[..., Engine]):
    """J7: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS on what is registered."""
    before = gpu.get("sync_memops")
    engine().register(gpu.new((4096,)))
    assert gpu.get("sync_memops") > before


def test_without_a_nic_no_cpu_touches_it(gpu: GpuDouble, engine: Callable[..., Engine]):
    """The double's memory kills whoever does."""
    near, far = engine(("tcp",)), engine(("tcp",))
    region = far.register(gpu.new((4096,)))
    source = gpu.new((4096,))
    for local, remote in ((source, region.remote()), (bytearray(4096), region.remote().bytes())):
        with pytest.raises(Unavailable, match="cannot reach device memory"):
            near.write(local, to=remote, deadline=10).wait(WAIT)


# ----------------------------------------------------------------------------------------- chunks
def test_expandable_segments(gpu: GpuDouble, double: Double, engine: Callable[..., Engine]):
    """B9: a tensor over three chunks of an address range, in both directions, and its growth."""
    near, far = engine(), engine()
    with Expandable(gpu) as segment:
        segment.grow(4)
        chunk = segment.chunk
        start, nbytes = chunk // 2 + 512, 2 * chunk + 100_000
        tensor = gpu.tensor(segment.address + start, (nbytes,))
        region = far.register(tensor)
        assert "3 registrations through dma-buf" in region.explain()[0]
        native = region.remote()._owner
        data = pattern(nbytes)
        near.write(bytearray(data), to=region.remote()).wait(WAIT)
        assert gpu.bytes_at(segment.address + start, nbytes) == data
        for border in (chunk, 2 * chunk):  # pieces that cross each border, from a GPU
            offset = border - start - 1500
            host = bytearray(3000)
            near.read(region.remote()[offset : offset + 3000], into=host).wait(WAIT)
            assert bytes(host) == data[offset : offset + 3000]
        # M#3769, M#3805: what the allocator adds changes nothing of a region that is open.
        segment.grow(2)
        near.read(region.remote()[:8], into=bytearray(8)).wait(WAIT)
        assert region.remote()._owner == native
        longer = gpu.tensor(segment.address + 4 * chunk - 8, (chunk,))
        other = far.register(longer)
        near.write(bytearray(pattern(chunk, 3)), to=other.remote()).wait(WAIT)
        assert gpu.bytes_at(segment.address + 4 * chunk - 8, chunk) == pattern(chunk, 3)
        # The local side as well, by registrations that nobody asked for.
        near.read(region.remote()[: 2 * chunk], into=gpu.tensor(segment.address, (2 * chunk,)))
        for closing in (region, other):
            closing.close()
        near.close(), far.close()


def test_chunks_above_the_devices_limit(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine]
):
    """B1 and B9 together."""
    double.put("max_mr_size", MIB)
    near, far = engine(), engine()
    with Expandable(gpu) as segment:
        segment.grow(3)
        nbytes = 2 * segment.chunk
        region = far.register(gpu.tensor(segment.address + 4096, (nbytes,)))
        near.write(bytearray(pattern(nbytes)), to=region.remote()).wait(WAIT)
        assert gpu.bytes_at(segment.address + 4096, nbytes) == pattern(nbytes)
        near.close(), far.close()
    double.put("max_mr_size", 1 << 40)


# -------------------------------------------------------------------------------- the local cache
def test_one_registration_for_each_allocation(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine]
):
    near, far = engine(), engine()
    region = far.register(bytearray(4096))
    base = gpu.alloc(4 * MIB)
    tensors = [gpu.tensor(base + 512 * i, (16,)) for i in range(1000)]
    near.write(tensors[0], to=region.remote()[:16]).wait(WAIT)
    before = double.get("registrations")
    for i, tensor in enumerate(tensors):
        near.write(tensor, to=region.remote()[16 * (i % 200) : 16 * (i % 200) + 16]).wait(WAIT)
    assert double.get("registrations") == before
    assert near._core.gpu_cache.entries == 1


def test_an_address_that_is_another_allocations(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine]
):
    """C1, C2, C3: cudaFree, and cudaMalloc gives the address again: the bytes must be new."""
    near, far = engine(), engine()
    target = bytearray(64)
    remote = far.register(target).remote()
    seen = set()
    for round_ in range(20):
        address = gpu.alloc(MIB)
        seen.add(address)
        tensor = gpu.tensor(address, (64,))
        gpu.write(tensor, pattern(64, round_))
        near.write(tensor, to=remote).wait(WAIT)
        assert bytes(target) == pattern(64, round_)
        gpu.free(address)  # under a tensor that lives, as a raw allocator may
    assert len(seen) < 20, "the double never gave an address again"


def test_it_goes_with_the_last_storage(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine]
):
    near, far = engine(), engine()
    remote = far.register(bytearray(64)).remote()
    address = gpu.alloc(MIB)
    near.write(gpu.tensor(address, (64,)), to=remote).wait(WAIT)
    mrs = double.get("mrs")
    gc.collect()
    near.write(bytearray(64), to=remote).wait(WAIT)  # the next call does what is left to do
    near.write(bytearray(64), to=remote).wait(WAIT)
    assert near._core.gpu_cache.entries == 0
    assert double.get("mrs") <= mrs


def test_a_region_that_was_closed_is_stale(gpu: GpuDouble, engine: Callable[..., Engine]):
    near, far = engine(), engine()
    region = far.register(gpu.new((4096,)))
    remote = region.remote()
    near.write(bytearray(4096), to=remote).wait(WAIT)
    region.close()
    with pytest.raises(StaleRegion):
        near.write(bytearray(4096), to=remote).wait(WAIT)


def test_atomics_are_not_for_it(gpu: GpuDouble, engine: Callable[..., Engine]):
    with pytest.raises(InvalidUse):
        engine().adopt(gpu.new((8,)))
