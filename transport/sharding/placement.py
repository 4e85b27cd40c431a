"""How one mesh dimension places a tensor, with torch's exact semantics. Pure; imports errors only.

Source: torch.distributed.tensor.placement_types of torch 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from transport.errors import LayoutError
from transport.sharding.mesh import whole

MAX_SPLIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """The tensor's dimension `dim` is cut as `torch.chunk` cuts: the last shards may be empty."""

    dim: int

    def __post_init__(self) -> None:
        whole(self.dim, "the dimension of a Shard")

    def __str__(self) -> str:
        return f"S({self.dim})"


@dataclass(frozen=True, slots=True)
class StridedShard:
    """As Shard, within each of the `split_factor` chunks that later mesh dimensions will take.

    FSDP over tensor parallelism needs it: the mesh says dp before tp, but tp cut first.
    """

    dim: int
    split_factor: int

    def __post_init__(self) -> None:
        whole(self.dim, "the dimension of a StridedShard")
        if not 1 <= whole(self.split_factor, "a split factor") <= MAX_SPLIT:
            raise LayoutError(f"a split factor is from 1 to {MAX_SPLIT}, not {self.split_factor}")

    def __str__(self) -> str:
        return f"S({self.dim}, split={self.split_factor})"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Each rank along the mesh dimension holds the same."""

    def __str__(self) -> str:
        return "R"


Placement: TypeAlias = Shard | StridedShard | Replicate


def normalised(placements: object, mesh_rank: int, tensor_rank: int) -> tuple[Placement, ...]:
    """One placement per mesh dimension, their dims >= 0. Raises LayoutError for what cannot be.

    Torch's own placements are taken too: they are recognised by their methods, torch is not
    imported. A StridedShard with a split factor of 1 is a Shard.
    """
    try:
        given = tuple(placements)  # type: ignore[arg-type, var-annotated]
    except TypeError:
        raise LayoutError(f"placements are a sequence, not {placements!r:.80}") from None
    if len(given) != mesh_rank:
        raise LayoutError(f"{len(given)} placements for a mesh of {mesh_rank} dimensions")
    return tuple(_one(placement, tensor_rank) for placement in given)


def _one(placement: object, rank: int) -> Placement:
    placement = _ours(placement)
    if isinstance(placement, Replicate):
        return placement
    if not -rank <= placement.dim < rank:
        raise LayoutError(f"{placement} is for a dimension that a tensor of {rank} has not")
    dim = placement.dim % rank
    if isinstance(placement, StridedShard) and placement.split_factor > 1:
        return StridedShard(dim, placement.split_factor)
    return Shard(dim)


def _ours(placement: object) -> Placement:
    if isinstance(placement, (Shard, StridedShard, Replicate)):
        return placement
    kind = type(placement).__name__
    if kind in ("_StridedShard", "StridedShard"):
        return StridedShard(placement.dim, int(placement.split_factor))  # type: ignore[attr-defined]
    if kind == "Shard":
        return Shard(placement.dim)  # type: ignore[attr-defined]
    if kind == "Replicate":
        return Replicate()
    if "Partial" in kind:
        raise LayoutError(
            f"{placement!r} is a sum that is not summed up yet: no rank holds the tensor's values; "
            "redistribute it to Shard or Replicate first"
        )
    raise LayoutError(f"{placement!r:.80} is no placement; Shard, StridedShard and Replicate are")
