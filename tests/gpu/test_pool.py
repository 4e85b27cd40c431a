"""GPU memory of the engine's own: growth, give-back, tensors of torch and others, torch's pool."""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING

import pytest
import torch

from transport.errors import InvalidUse, NativeError, Unavailable
from transport.ffi import LIBRARY, ffi, lib
from transport.memory.device import Device
from transport.memory.gpu import extent_at
from transport.memory.gpu_array import GpuArray
from transport.memory.gpu_pool import SEGMENT_BYTES
from transport.memory.host import view

if TYPE_CHECKING:
    from collections.abc import Callable

    from fakeverbs import Double
    from gpu_double import GpuDouble

    from transport import Engine

WAIT = 30.0
MIB = 1 << 20


@pytest.fixture
def device(gpu: GpuDouble) -> str:
    torch.cuda._lazy_init = lambda: None
    return gpu.kind


def test_a_torch_tensor(gpu: GpuDouble, engine: Callable[..., Engine], device: str):
    one = engine()
    tensor = one.empty((3, 5), torch.float32, device=device)
    assert (tensor.device.type, tensor.device.index) == (device, 0)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((3, 5), torch.float32, True)
    found = view(tensor)
    assert found.device == Device(device, 0)
    assert extent_at(found.address, 60).pooled
    assert found.address % 512 == 0
    one.register(tensor)
    bf16 = one.empty(7, torch.bfloat16, device=f"{device}:0")
    assert (bf16.dtype, bf16.nbytes) == (torch.bfloat16, 14)
    assert one.empty((0, 3), torch.int8, device=device).shape == (0, 3)
    assert one.empty((), torch.bool, device=device).shape == ()


def test_an_array_for_others(gpu: GpuDouble, engine: Callable[..., Engine], device: str):
    one = engine()
    array = one.empty((2, 3), "float32", device=device)
    assert isinstance(array, GpuArray)
    assert array.nbytes == 24
    found = view(array)
    assert (found.dtype, tuple(found.shape), found.device.ordinal) == ("float32", (2, 3), 0)
    tensor = torch.utils.dlpack.from_dlpack(array.__dlpack__(stream=-1))
    assert tensor.data_ptr() == found.address
    assert array.__cuda_array_interface__["typestr"] == "<f4"
    unnamed = one.empty(4, "bfloat16", device=device)
    assert not hasattr(unnamed, "__cuda_array_interface__")
    assert view(unnamed).dtype == "bfloat16"
    for wrong in ("object", "float33"):
        with pytest.raises(InvalidUse, match="dtype"):
            one.empty(3, wrong, device=device)
    with pytest.raises(InvalidUse, match="there is no GPU 77"):
        one.empty(3, "uint8", device="cuda:77")


def test_memory_comes_back_with_the_last_of_all_who_have_it(
    gpu: GpuDouble, engine: Callable[..., Engine], device: str
):
    one = engine()
    pool = one._core.gpu_pool
    array = one.empty(5000, "uint8", device=device)
    address = view(array).address
    tensor = torch.utils.dlpack.from_dlpack(array.__dlpack__())
    part, capsule = tensor.storage_offset(), array.__dlpack__()
    del array
    gc.collect()
    assert pool.used_bytes > 0
    del tensor, part
    gc.collect()
    assert pool.used_bytes > 0, "a capsule that nobody took still holds it"
    del capsule
    gc.collect()
    assert pool.used_bytes == 0
    assert view(one.empty(5000, "uint8", device=device)).address == address


def test_a_block_is_used_again_only_when_its_region_is_quiet(
    gpu: GpuDouble, engine: Callable[..., Engine], device: str
):
    one = engine()
    tensor = one.empty(4096, torch.uint8, device=device)
    address, region = tensor.data_ptr(), one.register(tensor)
    del tensor
    gc.collect()
    assert one.empty(4096, torch.uint8, device=device).data_ptr() != address
    region.close()
    gc.collect()
    assert one._core.gpu_pool.used_bytes == 0


def test_growth_moves_nothing(gpu: GpuDouble, engine: Callable[..., Engine], device: str):
    one = engine()
    pool, before = one._core.gpu_pool, gpu.get("physical")
    arrays = [one.empty(SEGMENT_BYTES // 2, "uint8", device=device) for _ in range(5)]
    addresses = [view(array).address for array in arrays]
    large = one.empty(3 * SEGMENT_BYTES, "uint8", device=device)
    assert pool.segments == 4
    assert gpu.get("physical") == before + 4
    assert [view(array).address for array in arrays] == addresses
    assert len({address >> 40 for address in addresses}) <= 2  # one range of addresses
    del arrays, large
    gc.collect()
    pool.drain()
    assert pool.segments == 1  # one is kept for what comes next
    assert gpu.get("physical") == before + 1


def test_shareable_and_for_nics(gpu: GpuDouble, engine: Callable[..., Engine], device: str):
    one = engine()
    array = one.empty(4096, "uint8", device=device)
    found = ffi.new("struct tn_gpu_pointer *")
    assert lib.tn_gpu_pointer(view(array).address, found) == 0
    assert found.virtual_memory
    assert found.share_by_fd
    assert found.direct_rdma


def test_what_no_gpu_has(gpu: GpuDouble, engine: Callable[..., Engine], device: str):
    with pytest.raises(NativeError):
        engine().empty(1 << 50, "uint8", device=device)
    with pytest.raises(InvalidUse):
        engine().empty(4, "uint8", device=1 << 40)


def test_a_driver_that_is_full(gpu: GpuDouble, engine: Callable[..., Engine], device: str):
    one = engine()
    gpu.fail("cuMemCreate", "hipMemCreate", code=2)
    with pytest.raises(NativeError):
        one.empty(100, "uint8", device=device)
    gpu.fail("cuMemCreate", "hipMemCreate", count=0)
    assert one.empty(100, "uint8", device=device).nbytes == 100


def test_an_engine_may_close_before_its_tensors(
    gpu: GpuDouble, engine: Callable[..., Engine], device: str
):
    gc.collect()
    one, before = engine(), gpu.get("physical")
    tensor = one.empty(4096, torch.uint8, device=device)
    one.close()
    gpu.write(tensor, b"x" * 4096)  # still mapped
    del tensor
    gc.collect()
    assert gpu.get("physical") == before


def test_between_two_engines(gpu: GpuDouble, engine: Callable[..., Engine], device: str):
    near, far = engine(), engine()
    source = near.empty((256, 16), torch.float32, device=device)
    target = far.empty((256, 16), torch.float32, device=device)
    gpu.write(source, bytes(range(256)) * 64)
    near.write(source, to=far.register(target).remote()).wait(WAIT)
    assert gpu.read(target) == bytes(range(256)) * 64


# ------------------------------------------------------------------------------------ torch's pool
class Allocator:
    """torch's side of a CUDAPluggableAllocator: the functions by their names in our library."""

    def __init__(self) -> None:
        library = ctypes.CDLL(LIBRARY)
        self.malloc = library.tn_gpu_malloc
        self.malloc.restype = ctypes.c_void_p
        self.malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.free = library.tn_gpu_free
        self.free.restype = None
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]


def test_a_thousand_tensors_in_torchs_pool_are_one_registration(
    gpu: GpuDouble, double: Double, engine: Callable[..., Engine]
):
    """One for each segment, none for each tensor; and none is left when torch frees the segment."""
    near, far = engine(), engine()
    remote = far.register(bytearray(1 << 20)).remote()
    allocator, before = Allocator(), gpu.get("physical")
    segment = allocator.malloc(20 * MIB, 0, None)
    assert extent_at(segment, 20 * MIB).pooled
    near.write(gpu.tensor(segment, (1000,)), to=remote[:1000]).wait(WAIT)
    registrations, mrs = double.get("registrations"), double.get("mrs")
    for i in range(1000):
        near.write(gpu.tensor(segment + 512 * i, (512,)), to=remote[:512]).wait(WAIT)
    assert double.get("registrations") == registrations
    allocator.free(segment, 20 * MIB, 0, None)
    near.write(bytearray(512), to=remote[:512]).wait(WAIT)
    near.write(bytearray(512), to=remote[:512]).wait(WAIT)
    assert near._core.gpu_cache.entries == 0
    assert double.get("mrs") < mrs + 3
    assert gpu.get("physical") == before


def test_torchs_allocator_gets_nothing_where_there_is_nothing(gpu: GpuDouble):
    allocator = Allocator()
    assert allocator.malloc(0, 0, None) is None
    assert allocator.malloc(100, 77, None) is None
    gpu.fail("cuMemCreate", "hipMemCreate", code=2)
    assert allocator.malloc(100, 0, None) is None
    gpu.fail("cuMemCreate", "hipMemCreate", count=0)
    allocator.free(None, 0, 0, None)
    allocator.free(4096, 0, 0, None)


def test_a_torch_without_gpus_says_so():
    import transport

    with pytest.raises(Unavailable, match="sees no GPU"), transport.gpu_pool():
        pass
