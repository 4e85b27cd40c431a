"""Views of tensors, arrays and buffers: address, size, layout, and what is refused."""

from __future__ import annotations

import array
import ctypes
import mmap
import warnings
import weakref

import numpy as np
import pytest
import torch

from transport.errors import InvalidUse
from transport.memory.host import extent_of, identity_of, storage_of, view


def facts(x):
    v = view(x)
    return v.nbytes, tuple(v.shape), v.strides, v.dtype, v.readonly, v.contiguous


def raw(x):
    v = view(x)
    return ctypes.string_at(v.address, v.nbytes)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (torch.ones(3, 4), (48, (3, 4), (16, 4), "float32", False, True)),
        (torch.ones(3, 4).t(), (48, (4, 3), (4, 16), "float32", False, False)),
        (torch.ones(3, 4)[:, 1:3], (24, (3, 2), (16, 4), "float32", False, False)),
        (torch.ones(3).expand(5, 3), (60, (5, 3), (0, 4), "float32", False, False)),
        (torch.tensor(True), (1, (), (), "bool", False, True)),
        (torch.empty(0), (0, (0,), (4,), "float32", False, True)),
        (torch.empty(2, 0, 3), (0, (2, 0, 3), (12, 12, 4), "float32", False, True)),
        (torch.nn.Parameter(torch.ones(2)), (8, (2,), (4,), "float32", False, True)),
        (np.ones((3, 4)), (96, (3, 4), (32, 8), "float64", False, True)),
        (np.ones((3, 4))[::-1], (96, (3, 4), (-32, 8), "float64", False, False)),
        (np.float32(2), (4, (), (), "float32", True, True)),
        (np.zeros(3, "S5"), (15, (3, 5), (5, 1), None, False, True)),
        (np.zeros(4, "M8[s]")[::2], (16, (2, 8), (16, 1), None, False, False)),
        (np.zeros(2, "i4,f8"), (24, (2, 12), (12, 1), None, False, True)),
        (b"abc", (3, (3,), (1,), None, True, True)),
        (bytearray(5), (5, (5,), (1,), None, False, True)),
        (bytearray(), (0, (0,), (1,), None, False, True)),
        (memoryview(bytearray(10))[::2], (5, (5,), (2,), None, False, False)),
        (memoryview(bytearray(8)).cast("f"), (8, (2,), (4,), "float32", False, True)),
        (array.array("d", [1, 2]), (16, (2,), (8,), "float64", False, True)),
        ((ctypes.c_int * 3)(), (12, (3,), (4,), "int32", False, True)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_facts(x, expected):
    assert facts(x) == expected


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "uint16", "bool", "float16"]
)
def test_torch_dtypes(name):
    tensor = torch.zeros(3, dtype=getattr(torch, name))
    assert view(tensor).dtype == name
    assert view(tensor).nbytes == tensor.nbytes


def test_addresses():
    tensor, arr = torch.arange(6, dtype=torch.int32), np.arange(6, dtype=np.int32)
    assert view(tensor[2:]).address == tensor.data_ptr() + 8
    assert raw(tensor[2:]) == tensor[2:].numpy().tobytes()
    assert raw(arr[2:]) == arr[2:].tobytes()
    assert view(arr[::-1]).address == view(arr).address + 20
    assert raw(b"hello") == b"hello"
    assert raw(bytearray(b"hello")) == b"hello"
    with mmap.mmap(-1, 8) as memory:
        memory[:5] = b"hello"
        assert raw(memory)[:5] == b"hello"


def test_readonly():
    frozen = np.ones(3)
    frozen.flags.writeable = False
    assert view(frozen).readonly
    assert view(memoryview(b"x")).readonly
    assert not view(memoryview(bytearray(b"x"))).readonly


def test_requires_grad_and_inference_tensors():
    grad = torch.ones(3, requires_grad=True)
    assert view(grad).address == grad.data_ptr()
    with torch.inference_mode():
        assert view(torch.ones(3)).nbytes == 12


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.quint8)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: [1, 2], "a list has no memory"),
        (lambda: "text", "a str has no memory"),
        (lambda: None, "no memory"),
        (lambda: torch.empty(3, device="meta"), "meta"),
        (lambda: torch.eye(3).to_sparse(), "to_dense"),
        (lambda: torch.view_as_complex(torch.ones(3, 2)).conj(), "resolve_conj"),
        (lambda: torch.view_as_complex(torch.ones(3, 2)).conj().imag, "resolve_neg"),
        (quantized, "uint8"),
        (lambda: np.array([object()]), "Python objects"),
        (lambda: np.ones(3, ">f4"), "byte order"),
    ],
)
def test_refusals_say_what_to_do(make, words):
    with pytest.raises(InvalidUse, match=words):
        view(make())


class Producer:
    """A third library's array: DLPack and nothing else."""

    def __init__(self, tensor, device=None, old=False):
        self.tensor, self.device, self.old = tensor, device, old

    def __dlpack__(self, **options):
        if self.old and options:
            raise TypeError("unexpected keyword argument")
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device or self.tensor.__dlpack_device__()


@pytest.mark.parametrize("old", [False, True])
def test_dlpack(old):
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert facts(Producer(tensor, old=old)) == (12, (2, 3), (6, 2), "bfloat16", False, True)
    assert view(Producer(tensor, old=old)).address == tensor.data_ptr()
    assert facts(Producer(tensor.t(), old=old))[:3] == (12, (3, 2), (2, 6))


def test_dlpack_read_only_is_seen():
    frozen = np.ones(3)
    frozen.flags.writeable = False
    assert view(Producer(frozen)).readonly


def test_dlpack_elsewhere_is_refused():
    with pytest.raises(InvalidUse, match="no host or GPU"):
        view(Producer(torch.ones(3), device=(8, 0)))  # kDLMetal


def test_dlpack_view_keeps_the_memory_alive():
    tensor = torch.arange(4)
    storage = weakref.ref(tensor.untyped_storage())
    kept = view(Producer(tensor))
    del tensor
    assert storage() is not None
    assert ctypes.string_at(kept.address, 32) == np.arange(4).tobytes()
    del kept
    assert storage() is None


def test_a_bytearray_cannot_be_resized_under_a_view():
    data = bytearray(4)
    kept = view(data)
    with pytest.raises(BufferError):
        data.append(1)
    del kept
    data.append(1)


def test_views_of_one_storage_share_an_identity():
    tensor, arr = torch.arange(12).reshape(3, 4), np.arange(12).reshape(3, 4)
    for base in (tensor, arr):
        parts = [base, base[1:], base.T, base.reshape(-1)[3:5]]
        assert len({identity_of(view(part)) for part in parts}) == 1
        assert identity_of(view(base)) != identity_of(view(base + 0))
    storage = storage_of(view(tensor[1:]))
    assert extent_of(storage, view(tensor[1:])) == (tensor.data_ptr(), 96)
    root = storage_of(view(arr[1:]))
    assert extent_of(root, view(arr[1:])) == (view(arr).address, 96)
    assert storage_of(view(bytearray(3))) is None


def test_the_death_of_a_storage_is_seen_through_views():
    tensor = torch.ones(4)
    dead = []
    weakref.finalize(storage_of(view(tensor)), dead.append, 1)
    part = tensor[1:]
    del tensor
    assert not dead
    del part
    assert dead == [1]
