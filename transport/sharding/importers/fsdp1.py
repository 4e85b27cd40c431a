"""Layouts of FSDP1's flat parameters. Does not import torch.

May import the room's descriptions and errors. FSDP1 flattens the parameters of a unit, concatenates
them with padding and gives each rank one slice, all slices being of the same length. Source:
torch.distributed.fsdp._flat_param of torch 2.13 (FlatParamHandle), whose attributes are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transport.errors import LayoutError
from transport.sharding.layout import Layout
from transport.sharding.state import StateLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike

_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def layouts_of_fsdp1(module: Any, ranks: ArrayLike | None = None) -> StateLayout:
    """The layouts of all parameters that FSDP1 has flattened in a module, by their plain names.

    The local tensor of a parameter is its unit's flat parameter, as `fsdp1_tensors` names it.
    `ranks` are the ranks of the sharding group in its order, or with one more axis in front several
    such groups that hold the same; by default the group's global ranks. Raises LayoutError for a
    module without flat parameters, and for parameters that are shards of something themselves.
    """
    made: dict[str, tuple[Layout, str]] = {}
    for prefix, handle in _handles(module):
        group = _group(handle) if ranks is None else ranks
        sharded = bool(handle.uses_sharded_strategy)
        found = layouts_of_flat_parameter(handle.flat_param, group, sharded=sharded)
        for name, layout in found.items():
            made[prefix + name] = layout, f"{prefix}_flat_param"
    if not made:
        raise LayoutError(f"{type(module).__name__} has no flat parameters: FSDP1 did not wrap it")
    return StateLayout(made)


def fsdp1_tensors(module: Any) -> dict[str, Any]:
    """This rank's slices: the name of a flat parameter -> its tensor of one dimension."""
    found: dict[str, Any] = {}
    for prefix, handle in _handles(module):
        flat = handle.flat_param
        # Before the first forward there is no _local_shard, and the parameter itself is the slice.
        local = getattr(flat, "_local_shard", None)
        found[f"{prefix}_flat_param"] = flat.data if local is None else local
    return found


def layouts_of_flat_parameter(
    flat: Any, ranks: ArrayLike, *, sharded: bool = True
) -> dict[str, Layout]:
    """Name within the unit -> layout in the flat parameter, from the metadata of a FlatParameter.

    Read are `_fqns`, `_shapes`, `_strides`, `_contiguities`, `_numels_with_padding`,
    `_is_padding_mask`, `_param_extensions`, `_shared_param_infos`, `_sharded_size` and `dtype`. Not
    sharded (NO_SHARD): each rank has all of it.
    """
    if any(extension is not None for extension in flat._param_extensions):
        raise LayoutError("a flat parameter of shards of DTensors: use FSDP2 over tensor parallel")
    length = int(np.prod(tuple(flat._sharded_size)))
    groups = np.asarray(ranks, np.int64)
    turn = np.broadcast_to(np.arange(groups.shape[-1]) * (length if sharded else 0), groups.shape)
    parameters = zip(flat._fqns, flat._shapes, _orders(flat), _offsets(flat))
    made = {
        _plain(name): _layout(tuple(shape), order, flat.dtype, offset, groups, turn, length)
        for name, shape, order, offset in parameters
    }
    for shared in flat._shared_param_infos:
        alias, owner = (
            _plain(f"{module}.{name}" if module else name)
            for module, name in (
                (shared.module_name, shared.param_name),
                (shared.prim_module_name, shared.prim_param_name),
            )
        )
        made[alias] = made[owner]
    return made


def _layout(
    shape: tuple[int, ...],
    order: Sequence[int],
    dtype: Any,
    offset: int,
    ranks: Any,
    turn: Any,
    length: int,
) -> Layout:
    """Of a parameter that begins at `offset`, in slices of `length` that begin at `turn`."""
    numel = int(np.prod(shape, dtype=np.int64))
    first = np.clip(turn - offset, 0, numel)
    count = np.clip(turn + length - offset, 0, numel) - first
    start = np.where(count > 0, np.maximum(offset - turn, 0), 0)
    laid = tuple(shape[axis] for axis in order)
    made = Layout.flat(
        laid,
        dtype,
        ranks.ravel(),
        first=first.ravel(),
        count=count.ravel(),
        start=start.ravel(),
        numel=length,
    )
    back = np.argsort(order).tolist()
    return made if back == list(range(len(shape))) else made.permuted(back)


def _orders(flat: Any) -> Iterator[list[int]]:
    """The order of each parameter's dimensions in memory: that is how FSDP1 flattens."""
    for shape, strides, plain in zip(flat._shapes, flat._strides, flat._contiguities):
        order = list(range(len(shape)))
        yield order if plain else sorted(order, key=lambda axis: -strides[axis])


def _offsets(flat: Any) -> list[int]:
    """Where each parameter begins in the whole flat parameter."""
    ends = np.cumsum(flat._numels_with_padding)
    begins = ends - np.asarray(flat._numels_with_padding)
    return [int(b) for b, padding in zip(begins, flat._is_padding_mask) if not padding]


def _handles(module: Any) -> Iterator[tuple[str, Any]]:
    """The plain prefix of the names of each FSDP unit, and its FlatParamHandle."""
    for name, unit in module.named_modules():
        handle = getattr(unit, "_handle", None)
        if handle is not None and hasattr(handle, "flat_param"):
            yield _plain(f"{name}." if name else ""), handle


def _group(handle: Any) -> list[int]:
    import torch.distributed

    return torch.distributed.get_process_group_ranks(handle.process_group)


def _plain(name: str) -> str:
    """Without the prefixes of wrappers, as a state dict has it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
