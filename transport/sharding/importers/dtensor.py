"""Layouts of torch's DTensors, and of state dicts that hold them. Does not import torch.

May import the room's descriptions and errors. A DTensor tells the placements on its whole mesh, so
one process's state dict describes all ranks of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transport.errors import LayoutError
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate
from transport.sharding.state import StateLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def mesh_of(device_mesh: Any) -> Mesh:
    """The Mesh of a torch DeviceMesh: its names, and the global ranks."""
    if isinstance(device_mesh, Mesh):
        return device_mesh
    ranks = device_mesh.mesh
    names = device_mesh.mesh_dim_names
    return Mesh(tuple(ranks.shape), names, ranks.tolist())


def layout_of(tensor: Any) -> Layout:
    """The layout of one DTensor. Raises LayoutError where it is Partial or no DTensor."""
    if not is_dtensor(tensor):
        raise LayoutError(f"a {type(tensor).__name__} is no DTensor: say which ranks have it")
    mesh = mesh_of(tensor.device_mesh)
    return Layout.placed(tuple(tensor.shape), tensor.dtype, mesh, tensor.placements)


def is_dtensor(tensor: Any) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def layouts_of(state: Mapping[str, Any], *, replicas: Sequence[int] | None = None) -> StateLayout:
    """The layouts of a state dict, nested or not, of DTensors, ShardedTensors and plain tensors.

    Names within nested mappings are joined by dots. `replicas` are the ranks that have the plain
    tensors, all of each: by default every rank of any DTensor's mesh, or rank 0 where there is
    none. What is no tensor is left out. Raises LayoutError that names the tensor.
    """
    tensors = dict(flattened(state))
    maker = _Maker()
    made: dict[str, Layout] = {}
    for name, tensor in tensors.items():
        if is_dtensor(tensor) or is_sharded(tensor):
            made[name] = maker.sharded(name, tensor)
    ranks = sorted({int(r) for layout in set(made.values()) for r in layout.ranks})
    everybody = _everybody(ranks if replicas is None else list(replicas))
    for name, tensor in tensors.items():
        if name not in made:
            made[name] = maker.whole(tensor, everybody)
    return StateLayout((name, made[name]) for name in tensors)


def flattened(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and tensor, of all that has a shape and a dtype."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        elif (hasattr(value, "shape") and hasattr(value, "dtype")) or is_sharded(value):
            yield f"{prefix}{name}", value


def is_sharded(tensor: Any) -> bool:
    """Whether it is a ShardedTensor, as state dicts of FSDP1 hold them."""
    return hasattr(tensor, "local_shards") and hasattr(tensor, "metadata")


class _Maker:
    """Makes each layout once: meshes and layouts are shared among the tensors of a model."""

    def __init__(self) -> None:
        self._meshes: dict[int, tuple[Any, Mesh]] = {}  # holds the key's object, so that ids stay
        self._layouts: dict[Any, Layout] = {}

    def sharded(self, name: str, tensor: Any) -> Layout:
        try:
            return self._placed(tensor) if is_dtensor(tensor) else _of_sharded(tensor)
        except LayoutError as error:
            raise LayoutError(f"{name}: {error}") from None

    def whole(self, tensor: Any, everybody: Mesh) -> Layout:
        return self._once(tuple(tensor.shape), tensor.dtype, everybody, (Replicate(),))

    def _placed(self, tensor: Any) -> Layout:
        device_mesh = tensor.device_mesh
        known = self._meshes.get(id(device_mesh))
        if known is None:
            known = self._meshes[id(device_mesh)] = device_mesh, mesh_of(device_mesh)
        return self._once(tuple(tensor.shape), tensor.dtype, known[1], tuple(tensor.placements))

    def _once(self, shape: Any, dtype: Any, mesh: Mesh, placements: Any) -> Layout:
        about = shape, dtype, mesh, placements
        layout = self._layouts.get(about)
        if layout is None:
            layout = self._layouts[about] = Layout.placed(shape, dtype, mesh, placements)
        return layout


def _everybody(ranks: list[int]) -> Mesh:
    ranks = ranks or [0]
    return Mesh((len(ranks),), ("replicas",), ranks)


def _of_sharded(tensor: Any) -> Layout:
    """From the metadata of a ShardedTensor, which lists the shards of all ranks."""
    about = tensor.metadata()
    boxes: dict[int, list[Any]] = {}
    for shard in about.shards_metadata:
        rank = shard.placement.rank()
        if rank in boxes:
            raise LayoutError(f"rank {rank} has several shards; use DTensors")
        boxes[rank] = [(tuple(shard.shard_offsets), tuple(shard.shard_sizes))]
    return Layout.explicit(tuple(about.size), about.tensor_properties.dtype, boxes)
