"""What counts as a GPU's memory, and what never does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from gpu_double import Foreign, Interfaced

from transport import Blocks
from transport.errors import InvalidUse
from transport.memory.device import Device, parse
from transport.memory.gpu import GPU, HOST, MANAGED, PINNED, extent_at
from transport.memory.host import view

if TYPE_CHECKING:
    from gpu_double import GpuDouble


def facts(x: Any) -> tuple[Any, ...]:
    v = view(x)
    return v.address, v.nbytes, tuple(v.shape), v.strides, v.dtype, v.device


def test_torch_tensors(gpu: GpuDouble):
    address = gpu.alloc(4096)
    tensor = gpu.tensor(address, (3, 4), "float32")
    assert facts(tensor) == (address, 48, (3, 4), (16, 4), "float32", Device(gpu.kind, 0))
    turned = gpu.tensor(address, (4, 3), "float32", strides=(1, 4))
    assert facts(turned) == (address, 48, (4, 3), (4, 16), "float32", Device(gpu.kind, 0))
    assert view(torch.ones(3)).device is None


def test_arrays_of_other_libraries_by_dlpack(gpu: GpuDouble):
    address = gpu.alloc(4096)
    array = Foreign(gpu, address, (2, 8), "int32")
    assert facts(array) == (address, 64, (2, 8), (32, 4), "int32", Device(gpu.kind, 0))
    assert array.asked == [-1]  # the producer need not synchronize: submit orders it


_GARBAGE: dict[str, dict[str, Any]] = {
    "no data": {"data": None},
    "half of it": {"data": (0,)},
    "an address in words": {"data": ("x", False)},
    "a negative address": {"data": (-5, False)},
    "an address beyond": {"data": (1 << 70, False)},
    "no shape": {"shape": None},
    "a shape in words": {"shape": ("4",)},
    "a broken shape": {"shape": (4.5,)},
    "a negative shape": {"shape": (-4,)},
    "a shape beyond": {"shape": (1 << 40, 1 << 40)},
    "no type": {"typestr": None},
    "an empty type": {"typestr": ""},
    "a type of no size": {"typestr": "<fx"},
    "objects": {"typestr": "|O8"},
    "strides of another shape": {"strides": (4, 4)},
    "strides in words": {"strides": ("4",)},
}


@pytest.mark.parametrize("wrong", _GARBAGE.values(), ids=_GARBAGE)
def test_an_interface_that_is_none(gpu: GpuDouble, wrong: dict[str, Any]):
    told = {"shape": (4,), "typestr": "<f4", "data": (gpu.alloc(4096), False), **wrong}
    with pytest.raises(InvalidUse):
        view(Interfaced(**told))


@pytest.mark.parametrize("told", [None, (2,), ("a", 0), (2, "x"), (2, -1)])
def test_a_dlpack_device_that_is_none(gpu: GpuDouble, told: Any):
    class Odd(Foreign):
        def __dlpack_device__(self) -> Any:
            return told

    array = Odd(gpu, gpu.alloc(4096), (2, 8), "int32")
    with pytest.raises(InvalidUse, match="is no device"):
        view(array)


def test_the_array_interface(gpu: GpuDouble):
    address = gpu.alloc(4096)
    gpu.use(0)
    array = Interfaced(shape=(2, 3), typestr="<f4", data=(address, False))
    assert facts(array) == (address, 24, (2, 3), (12, 4), "float32", Device("cuda", 0))
    strided = Interfaced(shape=(2, 3), typestr="<f4", data=(address, True), strides=(64, 4))
    assert view(strided).strides == (64, 4)
    assert view(strided).readonly
    untyped = Interfaced(shape=(2,), typestr="|V6", data=(address, False))
    assert facts(untyped)[1:5] == (12, (2, 6), (6, 1), None)
    with pytest.raises(InvalidUse, match="byte order"):
        view(Interfaced(shape=(2,), typestr=">f4", data=(address, False)))
    with pytest.raises(InvalidUse, match="masked"):
        view(Interfaced(shape=(2,), typestr="<f4", data=(address, False), mask=array))
    with pytest.raises(InvalidUse, match="is no GPU's"):
        view(Interfaced(shape=(2,), typestr="<f4", data=(1 << 20, False)))


def test_managed_memory_is_the_gpus_and_pinned_memory_the_hosts(gpu: GpuDouble):
    address = gpu.alloc(4096)
    managed = gpu.capsule(address, (8,), kind=13)
    with_dlpack = type("M", (), {"__dlpack__": lambda s, **_: managed, "__dlpack_device__": None})
    with_dlpack.__dlpack_device__ = lambda s: (13, 0)
    assert view(with_dlpack()).device == Device("cuda", 0)
    host = np.zeros(8, np.uint8)
    pinned = gpu.capsule(host.ctypes.data, (8,), kind=3 if gpu.platform == "cuda" else 11)
    with_dlpack.__dlpack__ = lambda s, **_: pinned
    with_dlpack.__dlpack_device__ = lambda s: (3, 0)
    assert view(with_dlpack()).device is None


def test_the_driver_classifies_any_address(gpu: GpuDouble):
    address = gpu.alloc(1 << 20)
    found = extent_at(address + 4096, 512)
    assert (found.kind, found.device, found.start) == (GPU, 0, address)
    assert found.nbytes >= 1 << 20
    assert found.pieces == 1
    assert extent_at(np.zeros(8).ctypes.data, 8).kind == HOST
    import ctypes

    out = ctypes.c_uint64()
    gpu.call("cuMemHostAlloc", "hipHostMalloc", ctypes.byref(out), ctypes.c_size_t(4096), 0)
    assert extent_at(out.value, 8).kind == PINNED
    gpu.call("cuMemAllocManaged", "hipMallocManaged", ctypes.byref(out), ctypes.c_size_t(4096), 1)
    assert extent_at(out.value, 8).kind == MANAGED


def test_no_context_on_another_gpu(gpu: GpuDouble, engine: Any):
    """M#2089: classifying and registering make none but the memory's own."""
    before = gpu.get("contexts")
    tensor = gpu.new((256,))
    made = engine()
    region = made.register(tensor)
    assert gpu.get("contexts") == before
    region.close()


def test_what_cpus_must_read_is_refused(gpu: GpuDouble, engine: Any):
    numbers = gpu.tensor(gpu.alloc(4096), (4,), "int64")
    with pytest.raises(InvalidUse, match="must be in host memory, not on"):
        Blocks(bytearray(64), numbers, 8)


def test_memory_that_the_driver_does_not_know(gpu: GpuDouble, engine: Any):
    """B8: never silently "host"."""
    address = gpu.alloc(1 << 16)
    tensor = gpu.tensor(address, (64,))
    made = engine()
    gpu.free(address)
    with pytest.raises(InvalidUse, match="knows nothing of it"):
        made.register(tensor)


def test_names_of_devices():
    assert parse("cuda:3") == parse(torch.device("cuda:3")) == parse(3) == Device("cuda", 3)
    assert parse("hip:1") == Device("hip", 1)
    assert parse("cuda") == Device("cuda", 0)
    assert parse(None) is parse("cpu") is parse(torch.device("cpu")) is None
    for wrong in ("meta", "cuda:", "cuda:-1", -1, True, 1.5, "cuda:x", "gpu"):
        with pytest.raises(InvalidUse, match="a device is"):
            parse(wrong)
