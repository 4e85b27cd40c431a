"""Pickling that leaves memory out: what a value is, and apart from it the memories that it needs.

May import errors, and cloudpickle. Never imports torch or numpy: a value can only have a tensor
whose owner has imported torch already. Tensors are cut at their storages: what torch's own
pickling says of a tensor stays as it is (a Parameter, its requires_grad, sparse and quantized
ones, subclasses), and tensors that share a storage share it at the other end.
"""

from __future__ import annotations

import io
import pickle
import sys
import time
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from transport.errors import InvalidUse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PROTOCOL = 5
_ALIGN = 64  # of where the part of a storage begins that is sent
_HERE = __name__
_SPARSE = 2  # a lone view that spans so many times its elements is sent without the gaps


@dataclass(slots=True, eq=False)
class Piece:
    """One memory that a value needs: of a storage the bytes from `low` to `high`, or all."""

    owner: Any  # a torch storage, a PickleBuffer, or a tensor or array
    low: int = 0
    high: int = 0
    views: list[tuple[int, int]] = field(default_factory=list)  # span and elements' bytes of each
    whole: bool = False  # a tensor or array that is a thing of its own
    stays: bool = False  # and becomes a RemoteTensor

    @property
    def sparse(self) -> bool:
        """Whether it is one view, most of whose span is gaps."""
        return len(self.views) == 1 and self.views[0][0] >= _SPARSE * self.views[0][1] > 0


class Pieces:
    """The memories of one value, in the order in which they are met."""

    def __init__(self) -> None:
        self.all: list[Piece] = []
        self._by_owner: dict[int, int] = {}

    def add(self, owner: Any, *, whole: bool = False, stays: bool = False) -> int:
        """The number of a new piece."""
        self.all.append(Piece(owner, whole=whole, stays=stays))
        return len(self.all) - 1

    def leave_out(self, buffer: pickle.PickleBuffer) -> None:
        """As a pickler's buffer_callback."""
        self.add(buffer)

    def of_storage(self, storage: Any, low: int, high: int, nbytes: int) -> int:
        """The number of the storage's piece, which now has these bytes too."""
        number = self._by_owner.get(id(storage))
        if number is None:
            number = self._by_owner[id(storage)] = self.add(storage)
            self.all[number].low = low
        piece = self.all[number]
        piece.low = min(piece.low, low // _ALIGN * _ALIGN)
        piece.high = max(piece.high, high)
        piece.views.append((high - low, nbytes))
        return number


def _code_with_file(reduced: Any, code: types.CodeType) -> Any:
    """cloudpickle leaves out which file code is from; tracebacks shall name it."""
    make, given = reduced
    return make, tuple(code.co_filename if each == "<dynamic-code>" else each for each in given)


class Stay(NamedTuple):
    """Stands for a tensor or array that becomes a RemoteTensor, whatever else does."""

    thing: Any


_KINDS = {"ndarray": "numpy", "GpuArray": "gpu", "RemoteTensor": "remote"}


class Cutter(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Writes a value; `pieces` are the memories that were left out.

    It is for this very thread and value.
    """

    def __init__(self, file: io.BytesIO, remote: bool, dense: frozenset[int]) -> None:
        self.pieces = Pieces()
        # No method of its own: it would hold itself, and all that it has met.
        super().__init__(file, protocol=_PROTOCOL, buffer_callback=self.pieces.leave_out)
        self._remote = remote
        self.places: tuple[Sequence[int], Sequence[int]] | None = None
        self.passed: list[Any] = []  # tickets of remote tensors
        self._dense = dense  # storages of which one view is sent, without its gaps
        self._reducers = _reducers()

    def reducer_override(self, obj: Any) -> Any:
        reduce = self._reducers.get(type(obj))
        if isinstance(obj, types.CodeType):
            return _code_with_file(self.dispatch_table[types.CodeType](obj), obj)
        found = NotImplemented if reduce is None else reduce(self, obj)
        if self._remote and reduce is None and _is_tensor(obj):
            raise InvalidUse(f'keep="remote" is not for a {type(obj).__name__}: return its tensors')
        return super().reducer_override(obj) if found is NotImplemented else found

    # ------------------------------------------------------------------------------- of each type
    def _tensor(self, tensor: Any) -> Any:
        if tensor.is_nested:
            raise InvalidUse(
                "a nested tensor of strided layout cannot travel: make it with layout=torch.jagged,"
                " or send tensor.unbind()"
            )
        if self._remote:
            return self._as_remote(tensor, "torch")
        if not _is_plain(tensor):
            return NotImplemented
        storage = tensor.untyped_storage()
        if id(storage) in self._dense:
            tensor = tensor.detach().contiguous().requires_grad_(tensor.requires_grad)
            storage = tensor.untyped_storage()
        size = tensor.itemsize
        shape, strides = tuple(tensor.shape), tensor.stride()
        low = tensor.storage_offset() * size
        steps = sum((n - 1) * step for n, step in zip(shape, strides))
        high = low + (steps + 1) * size if tensor.numel() else low
        number = self.pieces.of_storage(storage, low, high, tensor.numel() * size)
        return rebuild_tensor, (number, tensor.dtype, low, shape, strides, tensor.requires_grad)

    def _parameter(self, parameter: Any) -> Any:
        return self._as_remote(parameter.data, "torch") if self._remote else NotImplemented

    def _storage(self, storage: Any) -> Any:
        size = storage.nbytes()
        return rebuild_storage, (self.pieces.of_storage(storage, 0, size, size),)

    def _typed_storage(self, typed: Any) -> Any:
        return rebuild_typed_storage, (typed._untyped_storage, typed.dtype)

    def _array(self, array: Any) -> Any:
        if self._remote:
            return self._as_remote(array, "numpy")
        if array.dtype.hasobject or array.flags.c_contiguous or array.flags.f_contiguous:
            return NotImplemented  # numpy itself leaves the memory out
        dense = array.copy(order="K")  # else numpy would put it into the text
        if not (dense.flags.c_contiguous or dense.flags.f_contiguous):
            dense = array.copy(order="C")
        return _same, (dense,)

    def _gpu_array(self, array: Any) -> Any:
        if self._remote:
            return self._as_remote(array, "gpu")
        return rebuild_gpu_array, (self.pieces.add(array, whole=True),)

    def _remote_tensor(self, tensor: Any) -> Any:
        parts = tensor.parts()
        self.passed.append(parts[1])
        return sys.modules[type(tensor).__module__].arrive, parts

    def _sharded(self, sharded: Any) -> Any:
        """Its parts stay where they are, whatever else does."""
        parts = {
            rank: {name: Stay(part) for name, part in tensors.items()}
            for rank, tensors in sharded.parts.items()
        }
        return type(sharded), (parts, sharded.layout)

    def _relaid(self, relaid: Any) -> Any:
        if self.places is not None:
            sys.modules[type(relaid).__module__].check_places(relaid.layout, *self.places)
        return rebuild_relaid, (relaid.sharded, relaid.layout)

    def _stay(self, stay: Stay) -> Any:
        kind = _KINDS.get(type(stay.thing).__name__, "torch")
        if kind == "remote":
            return self._remote_tensor(stay.thing)
        return self._as_remote(stay.thing, kind)

    def _as_remote(self, thing: Any, kind: str) -> Any:
        return rebuild_remote, (self.pieces.add(thing, stays=True), kind)


class Cut(NamedTuple):
    """A value without its memories, these, and tickets of the remote tensors that it has."""

    body: bytes
    pieces: list[Piece]
    passed: list[Any]


def cut(
    value: Any, *, remote: bool = False, places: tuple[Sequence[int], Sequence[int]] | None = None
) -> Cut:
    """With `remote` tensors and arrays become remote tensors. `places`: as in a Context.

    Raises what pickling raises, and LayoutError for a layout of other ranks than those places.
    """
    found = _cut(value, remote, frozenset(), places)
    sparse = frozenset(id(piece.owner) for piece in found.pieces if piece.sparse)
    return _cut(value, remote, sparse, places) if sparse else found


class Joiner(pickle.Unpickler):
    """Reads what a Cutter wrote. `rebuild` has the methods that make what needs memory."""

    def __init__(self, body: bytes, buffers: Any, rebuild: Rebuild) -> None:
        super().__init__(io.BytesIO(body), buffers=buffers)
        self._rebuild = rebuild

    def find_class(self, module: str, name: str) -> Any:
        if module == _HERE and name in _REBUILDERS:
            return getattr(self._rebuild, name.removeprefix("rebuild_"))
        return super().find_class(module, name)


class Rebuild:
    """Makes values of memories, given by number. Storages are torch's, of the bytes from `low`."""

    def __init__(
        self, memories: Sequence[Any], lows: Sequence[int], deadline: float = float("inf")
    ) -> None:
        self._memories = memories
        self._lows = lows
        self._deadline = deadline

    def tensor(
        self,
        number: int,
        dtype: Any,
        start: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        requires_grad: bool,
    ) -> Any:
        torch, storage = sys.modules["torch"], self._memories[number]
        offset = (start - self._lows[number]) // dtype.itemsize
        made = torch.empty(0, dtype=dtype, device=storage.device)
        return made.set_(storage, offset, shape, strides).requires_grad_(requires_grad)

    def storage(self, number: int) -> Any:
        return self._memories[number]

    def typed_storage(self, storage: Any, dtype: Any) -> Any:
        typed = sys.modules["torch"].storage.TypedStorage
        return typed(wrap_storage=storage, dtype=dtype, _internal=True)

    def gpu_array(self, number: int) -> Any:
        return self._memories[number]

    def remote(self, number: int, kind: str) -> Any:
        return self._memories[number](kind)

    def relaid(self, sharded: Any, layout: Any) -> Any:
        sys.modules[type(sharded).__module__].check_actors(layout)
        left = self._deadline - time.monotonic()
        return sharded.fetch(layout, timeout=None if left == float("inf") else max(left, 0.0))


def _cut(
    value: Any,
    remote: bool,
    dense: frozenset[int],
    places: tuple[Sequence[int], Sequence[int]] | None,
) -> Cut:
    with io.BytesIO() as file:
        cutter = Cutter(file, remote, dense)
        cutter.places = places
        cutter.dump(value)
        return Cut(file.getvalue(), cutter.pieces.all, cutter.passed)


def _is_tensor(thing: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(thing, getattr(torch, "Tensor", ()))


def _is_plain(tensor: Any) -> bool:
    """Whether its memory, dtype, shape and strides say all about it."""
    torch: Any = sys.modules["torch"]
    return bool(
        tensor.layout is torch.strided
        and (tensor.is_cpu or tensor.is_cuda)
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def _reducers() -> dict[type, Callable[[Cutter, Any], Any]]:
    """By exact type, of what is imported."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    gpu = sys.modules.get("transport.memory.gpu_array")
    kept = sys.modules.get("transport.mesh.remote_tensor")
    sharded = sys.modules.get("transport.mesh.sharded")
    found: dict[type, Callable[[Cutter, Any], Any]] = {}
    if numpy is not None:
        found[numpy.ndarray] = Cutter._array
    if gpu is not None:
        found[gpu.GpuArray] = Cutter._gpu_array
    if kept is not None:
        found[kept.RemoteTensor] = Cutter._remote_tensor
    if sharded is not None:
        found[sharded.Sharded] = Cutter._sharded
        found[sharded.Relaid] = Cutter._relaid
        found[Stay] = Cutter._stay
    if torch is not None and hasattr(torch, "UntypedStorage"):  # it may be half imported
        found[torch.Tensor] = Cutter._tensor
        found[torch.nn.Parameter] = Cutter._parameter
        found[torch.UntypedStorage] = Cutter._storage
        found[torch.storage.TypedStorage] = Cutter._typed_storage
    return found


def _same(value: Any) -> Any:
    return value


def _elsewhere(*_: Any) -> Any:
    raise InvalidUse("this was cut out of a call's value; only transport.mesh.payload reads it")


# What a Cutter writes in the place of something that needs memory; a Joiner calls its own instead.
def rebuild_tensor(*arguments: Any) -> Any:
    return _elsewhere(*arguments)


def rebuild_storage(*arguments: Any) -> Any:
    return _elsewhere(*arguments)


def rebuild_typed_storage(*arguments: Any) -> Any:
    return _elsewhere(*arguments)


def rebuild_gpu_array(*arguments: Any) -> Any:
    return _elsewhere(*arguments)


def rebuild_remote(*arguments: Any) -> Any:
    return _elsewhere(*arguments)


def rebuild_relaid(*arguments: Any) -> Any:
    return _elsewhere(*arguments)


_REBUILDERS = frozenset(name for name in globals() if name.startswith("rebuild_"))
