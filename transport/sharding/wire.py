"""Layouts as bytes, for other engines. Pure; may import layout, forms, checks and errors.

msgpack of a version, the meshes, the layouts (a part names its base by its place in the list, which
is before it) and the tensors. What arrives is checked as what a user gives, and bounded.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta, Struct

from transport.errors import LayoutError
from transport.sharding.checks import checked_boxes, checked_flat, shape_of
from transport.sharding.derived import Interleaved, Part, Permuted, Stacked, check_stack
from transport.sharding.flat import Flat
from transport.sharding.forms import Boxes, Placed
from transport.sharding.layout import Layout
from transport.sharding.mesh import MAX_RANKS, Mesh
from transport.sharding.placement import Placement, Replicate, Shard, StridedShard
from transport.types import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

VERSION = 1
# What the largest published models need, four times over and more: Kimi-K2's 140,000 tensors on
# 4,096 ranks are 8 MB, DeepSeek-V3's in 16 pipeline stages 4,400 layouts, and those of a model
# spread over 16,384 ranks 720,000 indices. All of it at once takes seconds and hundreds of MB.
MAX_BYTES = 1 << 26
MAX_NUMBERS = 1 << 22  # indices of all pieces
MAX_LAYOUTS = 1 << 15
MAX_TENSORS = 1 << 20

_Extent: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 60)]
_Shape: TypeAlias = Annotated[tuple[_Extent, ...], Meta(max_length=16)]
_Index: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 30)]
_Axis: TypeAlias = Annotated[int, Meta(ge=0, le=15)]
_Axes: TypeAlias = Annotated[tuple[_Axis, ...], Meta(max_length=16)]


class WireMesh(Struct, frozen=True, array_like=True):
    shape: _Shape
    names: tuple[str, ...]
    ranks: bytes  # empty: 0, 1, 2 ...


class WirePlaced(Struct, frozen=True, array_like=True, tag="placed"):
    shape: _Shape
    dtype: str
    mesh: _Index
    placements: tuple[tuple[int, int], ...]  # dim (-1: replicated) and split factor


class WireBoxes(Struct, frozen=True, array_like=True, tag="boxes"):
    shape: _Shape
    dtype: str
    dimensions: Annotated[int, Meta(ge=0, le=16)]
    arrays: tuple[bytes, bytes, bytes, bytes, bytes, bytes]


class WireFlat(Struct, frozen=True, array_like=True, tag="flat"):
    shape: _Shape
    dtype: str
    arrays: tuple[bytes, bytes, bytes, bytes, bytes]


class WirePart(Struct, frozen=True, array_like=True, tag="part"):
    base: _Index
    offset: _Shape
    size: _Shape
    kept: _Axes


class WireInterleaved(Struct, frozen=True, array_like=True, tag="interleaved"):
    base: _Index
    dim: _Axis
    start: _Extent
    length: _Extent
    step: _Extent


class WirePermuted(Struct, frozen=True, array_like=True, tag="permuted"):
    base: _Index
    axes: _Axes


class WireStacked(Struct, frozen=True, array_like=True, tag="stacked"):
    members: tuple[_Index, ...]
    dim: _Axis
    index: _Index


class WireUnion(Struct, frozen=True, array_like=True, tag="union"):
    members: tuple[_Index, ...]


WireDerived: TypeAlias = WirePart | WireInterleaved | WirePermuted | WireStacked | WireUnion
WireLayout: TypeAlias = WirePlaced | WireBoxes | WireFlat | WireDerived


class WireState(Struct, frozen=True, array_like=True):
    version: int
    meshes: Annotated[list[WireMesh], Meta(max_length=MAX_LAYOUTS)]
    layouts: Annotated[list[WireLayout], Meta(max_length=MAX_LAYOUTS)]
    # name, layout, local tensor ("": the same name)
    entries: Annotated[list[tuple[str, _Index, str]], Meta(max_length=MAX_TENSORS)]


class _Writer:
    """Gives every mesh and layout its place in the lists."""

    def __init__(self) -> None:
        self.meshes: dict[bytes, tuple[int, WireMesh]] = {}
        self.layouts: dict[bytes, tuple[int, WireLayout]] = {}

    def layout(self, layout: Layout) -> int:
        known = self.layouts.get(layout.key)
        if known is None:
            made = self._wire(layout)  # puts the base of a part in the list first
            known = self.layouts[layout.key] = (len(self.layouts), made)
        return known[0]

    def mesh(self, mesh: Mesh) -> int:
        known = self.meshes.get(mesh.key)
        if known is None:
            plain = np.array_equal(mesh.ranks.ravel(), np.arange(mesh.size))
            ranks = b"" if plain else _pack(mesh.ranks)
            wire = WireMesh(mesh.shape, mesh.names, ranks)
            known = self.meshes[mesh.key] = (len(self.meshes), wire)
        return known[0]

    def _wire(self, layout: Layout) -> WireLayout:
        form = layout.form
        if isinstance(form, Placed):
            places = tuple(_pair(placement) for placement in form.placements)
            return WirePlaced(layout.shape, layout.dtype, self.mesh(form.mesh), places)
        if isinstance(form, (Boxes, Flat)):
            arrays: Any = tuple(_pack(array) for array in form.arrays())
            if isinstance(form, Flat):
                return WireFlat(layout.shape, layout.dtype, arrays)
            return WireBoxes(layout.shape, layout.dtype, form.local_shapes.shape[1], arrays)
        return self._derived(form)

    def _derived(self, form: Any) -> WireDerived:
        bases = tuple(self.layout(base) for base in form.bases)
        if isinstance(form, Part):
            return WirePart(bases[0], form.offset, form.size, form.kept)
        if isinstance(form, Interleaved):
            return WireInterleaved(bases[0], form.dim, form.start, form.length, form.step)
        if isinstance(form, Permuted):
            return WirePermuted(bases[0], form.axes)
        if isinstance(form, Stacked):
            return WireStacked(bases, form.dim, form.index)
        return WireUnion(bases)


def encode_state(layouts: Sequence[Layout], entries: Iterable[tuple[str, Layout, str]]) -> bytes:
    """See `StateLayout.encode`."""
    writer = _Writer()
    places = {id(layout): writer.layout(layout) for layout in layouts}
    rows = [(n, places[id(layout)], "" if t == n else t) for n, layout, t in entries]
    meshes = [wire for _, wire in writer.meshes.values()]
    found = [wire for _, wire in writer.layouts.values()]
    return msgspec.msgpack.encode(WireState(VERSION, meshes, found, rows))


def decode_state(data: bytes) -> list[tuple[str, Layout, str]]:
    """See `StateLayout.decode`."""
    state = _parse(data)
    try:
        meshes = _meshes(state.meshes)
        layouts: list[Layout] = []
        numbers = 0
        for wire in state.layouts:
            layout = _layout(wire, meshes, layouts)
            numbers += layout.ranks.size + layout.pieces().offset.size
            if numbers > MAX_NUMBERS:  # a few bytes can describe very much
                raise LayoutError(f"layouts of over {MAX_NUMBERS} indices in all are refused")
            layouts.append(layout)
        return [(n, layouts[index], tensor or n) for n, index, tensor in state.entries]
    except (IndexError, ValueError, OverflowError):
        raise LayoutError("these bytes describe layouts that do not fit together") from None


def _parse(data: Any) -> WireState:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise LayoutError(f"a description is bytes, not a {type(data).__name__}")
    if len(data) > MAX_BYTES:
        raise LayoutError(f"a description of {len(data)} bytes is over the limit of {MAX_BYTES}")
    try:
        version = msgspec.msgpack.decode(data, type=list[msgspec.Raw])[0]
        if msgspec.msgpack.decode(version, type=int) != VERSION:
            raise LayoutError(
                "these layouts are of another version of the format; install the same release of "
                "tensor-transport on both sides"
            )
        return msgspec.msgpack.decode(data, type=WireState)
    except (*UNDECODABLE, IndexError):
        raise LayoutError("these bytes describe no layouts") from None


def _meshes(wires: list[WireMesh]) -> list[Mesh]:
    """A mesh of a million ranks is a few bytes here: so they are counted before any is made."""
    total = sum(min(math.prod(wire.shape), MAX_RANKS + 1) for wire in wires)
    if total > MAX_RANKS:
        raise LayoutError(f"meshes of {total} ranks in all are over the limit of {MAX_RANKS}")
    return [
        Mesh(wire.shape, wire.names, _unpack(wire.ranks) if wire.ranks else None) for wire in wires
    ]


def _layout(wire: WireLayout, meshes: list[Mesh], known: list[Layout]) -> Layout:
    if not isinstance(wire, (WirePlaced, WireBoxes, WireFlat)):
        return _derived(wire, known)
    shape = shape_of(wire.shape)
    if isinstance(wire, WirePlaced):
        placements = [_placement(dim, split) for dim, split in wire.placements]
        return Layout.placed(shape, wire.dtype, meshes[wire.mesh], placements)
    arrays = [_unpack(array) for array in wire.arrays]
    if isinstance(wire, WireFlat):
        if len({len(array) for array in arrays}) > 1:
            raise LayoutError("the arrays of a flat layout have different lengths")
        return Layout(shape, wire.dtype, checked_flat(shape, *arrays))
    ranks, local, rank, *boxes = arrays
    offset, size, at = (array.reshape(len(rank), len(shape)) for array in boxes)
    local = local.reshape(len(ranks), wire.dimensions)
    if (local < 0).any() or any(math.prod(row) > 1 << 60 for row in local.tolist()):
        raise LayoutError("a local shape that cannot be")
    form = checked_boxes(shape, ranks, local, rank, offset, size, at)
    return Layout(shape, wire.dtype, form)


def _derived(wire: WireDerived, known: list[Layout]) -> Layout:
    if isinstance(wire, WireUnion):
        return Layout.union([known[index] for index in wire.members])
    if isinstance(wire, WireStacked):
        members = tuple(known[index] for index in wire.members)
        member = members[wire.index]  # the others come by themselves
        check_stack(members, wire.dim)
        return Layout(member.shape, member.dtype, Stacked(members, wire.dim, wire.index))
    base = known[wire.base]
    if isinstance(wire, WireInterleaved):
        return base.interleaved(wire.dim, wire.start, wire.length, wire.step)
    if isinstance(wire, WirePermuted):
        return base.permuted(wire.axes)
    made = base.part(wire.offset, wire.size)
    for axis in reversed(range(len(made.shape))):
        made = made if axis in wire.kept else made.select(axis, 0)
    return made


def _pair(placement: Placement) -> tuple[int, int]:
    if isinstance(placement, Replicate):
        return -1, 0
    return placement.dim, placement.split_factor if isinstance(placement, StridedShard) else 1


def _placement(dim: int, split: int) -> Placement:
    if dim == -1:
        return Replicate()
    return StridedShard(dim, split) if split != 1 else Shard(dim)


def _pack(array: NDArray[np.int64]) -> bytes:
    return array.astype("<i8", copy=False).tobytes()


def _unpack(data: bytes) -> NDArray[np.int64]:
    return np.frombuffer(data, "<i8").astype(np.int64)
