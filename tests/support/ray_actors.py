"""Actors that make, take and hand on tensors through Ray, and the values that they are tried with.

May import ray, torch, numpy and the adapter. Ray's workers import it by name.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

import transport.adapters.ray as adapter

adapter.register()  # ray.method() refuses names that nobody has registered

BIG = 1 << 20  # elements: far above what is copied into an object's block
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


@dataclass
class Batch:
    """A value of the user's own class, with tensors inside."""

    name: str
    inputs: torch.Tensor
    more: dict[str, Any]


def numbers(count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Bytes that differ from each other and from those of other seeds, as elements of the dtype."""
    size = count * dtype.itemsize
    words = torch.arange(-(-size // 4), dtype=torch.int32).mul_(-1640531535).add_(seed * 7919)
    raw = words.view(torch.uint8)[:size]
    return raw.bitwise_and_(1).to(torch.bool) if dtype is torch.bool else raw.view(dtype)


def _aliased() -> list[torch.Tensor]:
    tensor = numbers(100)
    return [tensor, tensor, tensor[10:20], tensor.view(10, 10).t()]


def _overlapping() -> list[torch.Tensor]:
    base = numbers(2 * BIG)
    return [base, base[: BIG + 5], base[BIG - 5 :], base.view(2, BIG)[1]]


VALUES = {
    **{f"small {dtype}": lambda d=dtype: numbers(1000, d) for dtype in DTYPES},
    **{f"large {dtype}": lambda d=dtype: numbers(100_000, d) for dtype in DTYPES},
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: [torch.empty(0), torch.empty(0, 4, dtype=torch.bfloat16), numbers(7)],
    "only empty": lambda: torch.empty(3, 0),
    "nothing": lambda: {"no": "tensor", "at": [1, None]},
    "nested": lambda: {"a": [numbers(5), (numbers(BIG, seed=1), "text")], "b": {"c": numbers(3)}},
    "own class": lambda: Batch("b", numbers(9), {"x": numbers(BIG, seed=2), "n": 4}),
    "aliased": _aliased,
    "overlapping": _overlapping,
    "transposed": lambda: numbers(BIG).view(1024, 1024).t(),
    "transposed small": lambda: numbers(60).view(3, 4, 5).permute(2, 0, 1),
    "columns": lambda: numbers(2 * BIG).view(1024, 2048)[:, 100:1124],
    "thin columns": lambda: numbers(2 * BIG).view(BIG // 2, 4)[:, 1:3],
    "every other": lambda: numbers(BIG)[::2],
    "expanded": lambda: numbers(1000).expand(300, 1000),
    "channels last": lambda: (
        numbers(BIG).view(4, 64, 64, 64).contiguous(memory_format=torch.channels_last)
    ),
    "conjugate": lambda: [
        numbers(10, torch.complex64).conj(),
        numbers(BIG, torch.complex64).conj(),
    ],
    "parameter": lambda: torch.nn.Parameter(numbers(BIG)),
    "state dict": lambda: {"weight": numbers(90_000).view(300, 300), "bias": numbers(300)},
    "many": lambda: [numbers(16, seed=i) for i in range(500)],
}

ARRAYS = {
    "float32": lambda: np.arange(1000, dtype=np.float32),
    "large": lambda: np.arange(BIG, dtype=np.int64),
    "scalar": lambda: np.array(7),
    "empty": lambda: [np.empty((0, 3)), np.arange(4)],
    "fortran": lambda: np.asfortranarray(np.arange(BIG, dtype=np.float32).reshape(1024, 1024)),
    "backwards": lambda: np.arange(BIG)[::-1],
    "columns": lambda: np.arange(2 * BIG).reshape(1024, 2048)[:, :1024],
    "readonly": lambda: _frozen(np.arange(BIG)),
    "records": lambda: np.zeros(50_000, [("x", "i4"), ("y", "f8", 3)]),
    "fortran records": lambda: np.asfortranarray(np.zeros((300, 300), [("x", "i4"), ("y", "f8")])),
    "dates": lambda: np.arange("2020", "2030", dtype="datetime64[D]"),
    "text": lambda: np.array(["a", "bc"] * 40_000),
    "nested": lambda: {"a": [np.arange(3.0), "x"], "b": np.arange(BIG, dtype=np.uint8)},
}


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def leaves(value: Any) -> list[Any]:
    """The tensors and arrays in a value, in order, and what else there is."""
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key])]
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in leaves(part)]
    if isinstance(value, Batch):
        return leaves([value.name, value.inputs, value.more])
    return [value]


def differences(found: Any, wanted: Any) -> list[str]:
    """Where two values differ, in words; tensors are compared byte by byte."""
    first, second = leaves(found), leaves(wanted)
    if len(first) != len(second):
        return [f"{len(first)} leaves, not {len(second)}"]
    return [
        f"{i}: {a!r:.60} not {b!r:.60}"
        for i, (a, b) in enumerate(zip(first, second))
        if not _same(a, b)
    ]


def _same(a: Any, b: Any) -> bool:
    if isinstance(b, torch.Tensor):
        kinds = (a.dtype, a.shape, type(a)) == (b.dtype, b.shape, type(b))
        return kinds and torch.equal(_bytes(a), _bytes(b))
    if isinstance(b, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    return bool(a == b)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().contiguous().view(-1).view(torch.uint8)


def card_of(ref: Any, patience: float = 20.0) -> Any:
    """What Ray carries about the tensors of a reference that this process owns."""
    manager = ray._private.worker.global_worker.rdt_manager
    return manager.wait_for_tensor_transport_metadata(ref.hex(), patience)


def stacks_of(pid: int) -> Path:
    """Where a member writes what its threads are at, on SIGUSR1."""
    return Path(os.environ.get("RAY_STACKS", tempfile.gettempdir()), f"stacks-{pid}.txt")


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Member:
    """An actor that can do all of it."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.kept: Any = None
        self.stacks = stacks_of(os.getpid()).open("w")
        faulthandler.register(signal.SIGUSR1, self.stacks)

    @ray.method(tensor_transport="TRANSPORT")
    def make(self, name: str) -> Any:
        return VALUES[name]()

    @ray.method(tensor_transport="TRANSPORT_NUMPY")
    def make_array(self, name: str) -> Any:
        return ARRAYS[name]()

    @ray.method(tensor_transport="TRANSPORT")
    def numbers(self, count: int, seed: int = 0) -> torch.Tensor:
        self.kept = numbers(count, seed=seed)
        return self.kept

    @ray.method(tensor_transport="TRANSPORT")
    def give(self) -> Any:
        return self.kept

    @ray.method(tensor_transport="TRANSPORT")
    def hand_on(self, value: Any) -> Any:
        return value

    def put(self, name: str) -> list[Any]:
        return [ray.put(VALUES[name](), _tensor_transport="TRANSPORT")]

    def put_views(self, times: int) -> list[Any]:
        """References to overlapping views of one storage, each several times."""
        self.kept = numbers(4 * BIG)
        views = [self.kept, self.kept[BIG:], self.kept.view(4, -1)[1], self.kept[::2]]
        return [ray.put(v, _tensor_transport="TRANSPORT") for v in views[:3] * times]

    def refs(self, count: int) -> list[Any]:
        return [ray.put(numbers(BIG, seed=i), _tensor_transport="TRANSPORT") for i in range(count)]

    def compare(self, value: Any, name: str, arrays: bool = False) -> list[str]:
        return differences(value, (ARRAYS if arrays else VALUES)[name]())

    def compare_numbers(self, value: Any, count: int, seed: int = 0) -> list[str]:
        return differences(value, numbers(count, seed=seed))

    def fetch(self, refs: list[Any], timeout: float | None = None) -> Any:
        return ray.get(refs[0], timeout=timeout) is not None

    def fetch_and_compare(self, refs: list[Any], count: int, seed: int = 0) -> list[str]:
        return differences(ray.get(refs[0]), numbers(count, seed=seed))

    def pass_refs(self, other: Any, refs: list[Any], count: int) -> list[str]:
        return ray.get(other.fetch_and_compare.remote(refs, count))

    def have_made(self, count: int) -> list[str]:
        """Makes an actor of its own and takes a tensor from it."""
        child = Member.remote()
        return differences(ray.get(child.numbers.remote(count)), numbers(count))

    def overwrite(self, patience: float = 30.0) -> None:
        """Waits until Ray has freed what was given away, and writes into it."""
        from ray.experimental import wait_tensor_freed

        wait_tensor_freed(self.kept, patience)
        self.kept.fill_(-1.0)

    def regions(self) -> int:
        return len(adapter.engine().regions)

    def regions_after(self, patience: float = 20.0) -> int:
        """How many there are once there are none, or patience has run out."""
        end = time.monotonic() + patience
        while adapter.engine().regions and time.monotonic() < end:
            time.sleep(0.01)
        return len(adapter.engine().regions)

    def facts(self) -> tuple[str, int, tuple[str, ...]]:
        """Its engine's name, its process, and where the engine listens."""
        return adapter.engine().name, os.getpid(), adapter.engine().addresses

    def ready(self) -> bool:
        return True
