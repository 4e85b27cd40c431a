"""What is moved: a model, how the sources hold it, how the targets want it. Pure but for the file.

A case describes itself as plain data, because drivers run in environments without this project:
of each side the local shape and the box of each tensor by rank, and which dimension is cut.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from benchmarks.reshard.drivers import data
from transport.cli.demo_model import weights_file
from transport.memory.dtypes import ITEMSIZES
from transport.sharding.importers.safetensors import read_safetensors
from transport.sharding.models import TensorShape, llama
from transport.sharding.parallelism import Parallelism
from transport.sharding.placement import Shard
from transport.sharding.rules import Rule, named, sharded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.sharding.models.shape import Table
    from transport.sharding.state import StateLayout

SIDES = ("source", "target")

# The demo's model is a BERT.
_BERT = (
    Rule(r"word_embeddings\.weight$", tp=0, first=True),
    Rule(r"\.self\.(query|key|value)\.(weight|bias)$", tp=0),
    Rule(r"\.intermediate\.dense\.(weight|bias)$", tp=0),
    Rule(r"\.output\.dense\.weight$", tp=1),
)

_SMALL_LLAMA = llama.LlamaConfig(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=6,
    num_attention_heads=16,
    num_key_value_heads=4,
)


def demo_model() -> tuple[Table, tuple[Rule, ...]]:
    """The weights that `make demo` moves: 104 tensors, 91 MB of float32."""
    layouts = read_safetensors(weights_file()).layouts
    table = {name: TensorShape(it.layout.shape, it.layout.dtype) for name, it in layouts.items()}
    return table, _BERT


def small_llama() -> tuple[Table, tuple[Rule, ...]]:
    """Six layers in the shapes of a model of 1.1 billion parameters: 0.8 GB of bfloat16."""
    return llama.tensors(_SMALL_LLAMA), named(_SMALL_LLAMA.num_key_value_heads)


MODELS = {"demo": demo_model, "llama": small_llama}


@dataclass(frozen=True)
class Case:
    """One model from one sharding to another."""

    model: str
    source: str
    target: str

    @property
    def name(self) -> str:
        return f"{self.model}: {self.source} to {self.target}"

    @cached_property
    def table(self) -> Table:
        return MODELS[self.model]()[0]

    @cached_property
    def states(self) -> dict[str, StateLayout]:
        table, rules = MODELS[self.model]()
        spreads = zip(SIDES, (self.source, self.target))
        return {side: sharded(table, Parallelism.parse(text), rules) for side, text in spreads}

    @property
    def nbytes(self) -> int:
        """What all targets get."""
        itemsizes = [ITEMSIZES[it.dtype] for it in self.table.values()]
        pieces = [entry.layout.pieces() for entry in self.states["target"].values()]
        return sum(int(it.size.prod(axis=1).sum()) * n for it, n in zip(pieces, itemsizes))

    @cached_property
    def spec(self) -> dict[str, Any]:
        tensors = {n: {"shape": list(it.shape), "dtype": it.dtype} for n, it in self.table.items()}
        return {"tensors": tensors, "sides": {side: self._side(side) for side in SIDES}}

    def _side(self, side: str) -> dict[str, Any]:
        state, ranks = self.states[side], range(len(self.states[side].ranks))
        return {
            "layout": base64.b64encode(state.encode()).decode(),
            "shapes": [
                {n: list(it.layout.local_shape(r)) for n, it in state.items()} for r in ranks
            ],
            "boxes": [_boxes(state, rank) for rank in ranks],
            "placements": {name: _cut(entry.layout) for name, entry in state.items()},
        }

    @lru_cache  # noqa: B019
    def digests(self, seed: int) -> tuple[str, ...]:
        """What each target must hold, worked out from the whole tensors' definition."""
        sizes = [ITEMSIZES[it.dtype] for it in self.table.values()]
        numbers = {name: (number, sizes[number]) for number, name in enumerate(self.table)}
        made = []
        for boxes in self.spec["sides"]["target"]["boxes"]:
            parts = (
                data.part(numbers[name][0], *box, numbers[name][1], seed)
                for name, box in boxes.items()
            )
            made.append(data.digest(parts))
        return tuple(made)


def _shapes(state: StateLayout, rank: int) -> dict[str, list[int]]:
    return {name: list(entry.layout.local_shape(rank)) for name, entry in state.items()}


def _boxes(state: StateLayout, rank: int) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
    """Name -> offset and size. These cases have one box per tensor and rank, or none."""
    found = {}
    for name, entry in state.items():
        pieces = entry.layout.pieces_of(rank)
        assert len(pieces) < 2, name
        if len(pieces):
            found[name] = (pieces.offset[0].tolist(), pieces.size[0].tolist())
    return found


def _cut(layout: Any) -> int | None:
    """The dimension that a side of one mesh dimension cuts."""
    (placement,) = layout.form.placements
    return placement.dim if isinstance(placement, Shard) else None
