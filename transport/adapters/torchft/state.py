"""A state as torchft hands it over, as numbered pieces of memory and an outline. May import torch.

Leaves are tensors, DTensors (of which the local tensor travels) and whatever else pickle takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_unflatten

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Leaf:
    """What stands in the outline for a tensor, which travels on its own."""

    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements; they are dense
    dtype: torch.dtype
    device: str  # its type
    spec: Any = None  # of a DTensor

    def empty(self) -> torch.Tensor:
        """Memory for it, on the current device of its type."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


@dataclass(slots=True)
class Outline:
    """All of a state but the elements of its tensors."""

    tree: Any  # the state, with a Leaf for each tensor
    state: str = ""  # what the tensors are published as
    ranks: int = 1  # how many replicas may publish them


def flatten(state: object) -> tuple[Outline, dict[str, torch.Tensor]]:
    """The outline, and the memory of each tensor as bytes, by its number.

    Nothing is copied but tensors whose elements are not dense. Tensors without elements have none.
    """
    values, spec = tree_flatten(state)
    tensors: dict[str, torch.Tensor] = {}
    for at, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            plain = _plain(value)
            values[at] = _leaf(at, plain, value)
            if plain.numel():
                tensors[str(at)] = _bytes(plain)
    for device in {it.device for it in tensors.values() if it.is_cuda}:
        torch.cuda.synchronize(device)  # what wrote them has ended
    return Outline(tree_unflatten(values, spec)), tensors


def unflatten(outline: Outline, into: object | None) -> tuple[object, Mapping[str, torch.Tensor]]:
    """The state, whose tensors hold nothing yet, and their memory as bytes.

    Tensors of `into` that lie at the same place of the tree and are alike are used.
    """
    found, spec = tree_flatten_with_path(outline.tree)
    there: dict[Any, Any] = {} if into is None else dict(tree_flatten_with_path(into)[0])
    values: list[object] = []
    tensors: dict[str, torch.Tensor] = {}
    for path, leaf in found:
        if not isinstance(leaf, Leaf):
            values.append(leaf)
            continue
        value = _given(there.get(path), leaf)
        value = _made(leaf) if value is None else value
        values.append(value)
        if (plain := _plain(value)).numel():
            tensors[str(leaf.number)] = _bytes(plain)
    return tree_unflatten(values, spec), tensors


def _leaf(number: int, plain: torch.Tensor, value: torch.Tensor) -> Leaf:
    spec = value._spec if isinstance(value, DTensor) else None
    return Leaf(number, tuple(plain.shape), plain.stride(), plain.dtype, plain.device.type, spec)


def _made(leaf: Leaf) -> torch.Tensor:
    local = leaf.empty()
    if leaf.spec is None:
        return local
    return DTensor(local, leaf.spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _given(value: object, leaf: Leaf) -> torch.Tensor | None:
    """The tensor that is there, if the leaf's elements fit into it."""
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor) != (leaf.spec is not None):
        return None
    local = value.to_local() if isinstance(value, DTensor) else value
    what = (tuple(local.shape), local.stride(), local.dtype, local.device.type)
    return value if what == (leaf.shape, leaf.strides, leaf.dtype, leaf.device) else None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The local elements as they lie in memory, dense."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    local = local.detach()
    if local.is_conj() or local.is_neg():
        local = local.resolve_conj().resolve_neg()
    return local if _is_dense(local) else local.contiguous()


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
