"""Which dimension of which tensor is cut, by name; and the layouts that follow from it. Pure.

May import the other files of this room and errors. The names are those of Hugging Face's
checkpoints; other names bring rules of their own.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.errors import LayoutError
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Placement, Replicate, Shard, StridedShard
from transport.sharding.state import Entry, StateLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from transport.sharding.models.shape import Table, TensorShape
    from transport.sharding.parallelism import Parallelism

LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.([0-9]{1,6})\.")
EXPERT = re.compile(r"\.experts\.([0-9]{1,6})\.")


@dataclass(frozen=True)
class Rule:
    """For the tensors in whose name `match`, a regular expression, is found.

    tp     the dimension that tensor parallelism cuts; None: each of its ranks has all
    heads  how many pieces of that dimension must stay whole. Where tp is larger, several ranks have
           the same piece, as engines do with key-value heads
    ep     the dimension that counts experts, where they are stacked in one tensor
    first  whether the tensor, if it is in no layer, belongs to the first pipeline stage rather than
           to the last
    """

    match: str
    tp: int | None = None
    heads: int | None = None
    ep: int | None = None
    first: bool = False

    def __post_init__(self) -> None:
        try:
            re.compile(self.match)
        except re.error as error:
            raise LayoutError(f"{self.match!r:.80} is no regular expression: {error}") from None
        if self.heads is not None and self.heads < 1:
            raise LayoutError(f"the rule for {self.match!r:.80} has {self.heads} heads")


def named(kv_heads: int | None = None) -> tuple[Rule, ...]:
    """The rules for checkpoints of the Llama and DeepSeek families in Hugging Face's naming.

    `kv_heads`: num_key_value_heads of config.json, where keys are grouped.
    """
    kinds = r"\.(weight|bias|weight_scale_inv)$"
    columns = r"\.(q_proj|q_b_proj|kv_b_proj|gate_proj|up_proj)"
    return (
        Rule(r"(^|\.)embed_tokens\.weight$", tp=0, first=True),
        Rule(r"(^|\.)(lm_head|shared_head\.head)\.weight$", tp=0),
        Rule(r"\.(k_proj|v_proj)" + kinds, tp=0, heads=kv_heads),
        Rule(columns + kinds, tp=0),
        Rule(r"\.(o_proj|down_proj)\.(weight|weight_scale_inv)$", tp=1),
    )


_PLAIN = Rule("")
_FUSED = re.compile(r"(qkv|query_key_value|gate_up|gate_and_up|w13)(_proj)?\.(weight|bias)")


def sharded(table: Table, parallelism: Parallelism, rules: Sequence[Rule]) -> StateLayout:
    """Where each tensor of a model lies. The first rule that matches holds; one that none matches
    is the same on all tensor parallel ranks.

    Raises LayoutError for what cannot be cut like that, with the tensor's name.
    """
    layers = 1 + max((_number(LAYER, name, -1) for name in table), default=-1)
    experts = 1 + max((_number(EXPERT, name, -1) for name in table), default=-1)
    if experts and parallelism.ep > experts:
        raise LayoutError(f"ep={parallelism.ep} is more than the model's {experts} experts")
    made: dict[object, Layout] = {}
    entries: dict[str, Entry] = {}
    choose = _Choice(rules)
    for name, tensor in table.items():
        rule = choose(name)
        stage = _stage(name, rule, parallelism, layers)
        expert = _number(EXPERT, name, -1)
        share = expert * parallelism.ep // experts if expert >= 0 else -1
        key = (tensor, rule, stage, share)
        if key not in made:
            if rule is _PLAIN and parallelism.tp > 1 and _FUSED.search(name):
                words = "is several tensors in one, and ranks cut each of them: list them apart"
                raise LayoutError(f"{name} {words}, or say how it is cut by a rule of your own")
            made[key] = _layout(name, tensor, rule, parallelism, stage, share)
        entries[name] = Entry(made[key], name)
    return StateLayout(entries)


def unmatched(table: Table, rules: Sequence[Rule]) -> list[str]:
    """The tensors that no rule is for."""
    choose = _Choice(rules)
    return [name for name in table if choose(name) is _PLAIN]


class _Choice:
    """The rule for a name. Names that differ in numbers only have the same one: asked once."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [(re.compile(rule.match), rule) for rule in rules]
        self._known: dict[str, Rule] = {}

    def __call__(self, name: str) -> Rule:
        kind = EXPERT.sub(".experts.0.", LAYER.sub(".layers.0.", name, count=1), count=1)
        if kind not in self._known:
            found = (rule for pattern, rule in self._rules if pattern.search(name))
            self._known[kind] = next(found, _PLAIN)
        return self._known[kind]


def _number(pattern: re.Pattern[str], name: str, default: int) -> int:
    found = pattern.search(name)
    return int(found[1]) if found else default


def _stage(name: str, rule: Rule, parallelism: Parallelism, layers: int) -> int:
    if parallelism.pp == 1:
        return 0
    layer = _number(LAYER, name, -1)
    if layer >= 0:
        return parallelism.stage_of(layer, layers)
    return 0 if rule.first else parallelism.pp - 1


def _layout(
    name: str, tensor: TensorShape, rule: Rule, parallelism: Parallelism, stage: int, share: int
) -> Layout:
    """`share`: which of the ep ranks has this expert; -1 for what is no single expert."""
    axes = _Axes(name, len(tensor.shape), rule)
    if share >= 0:
        ranks = parallelism.experts_of(stage)[:, :, share]
    elif rule.ep is not None:
        ranks = parallelism.experts_of(stage)
    else:
        ranks = parallelism.grid(stage)
    dp, fsdp, tp = ranks.shape[0], ranks.shape[1], ranks.shape[-1]
    axes.add("dp", dp, Replicate())
    axes.add("fsdp", fsdp, Shard(0) if tensor.shape else Replicate())
    if ranks.ndim == 4 and rule.ep is not None:
        axes.add("ep", ranks.shape[2], axes.shard(rule.ep))
    if rule.tp is None:
        axes.add("tp", tp, Replicate())
    else:
        pieces = _pieces(name, rule, tp)
        axes.add("tp", pieces, axes.shard(rule.tp))
        axes.add("copies", tp // pieces, Replicate())
    return Layout.placed(tensor.shape, tensor.dtype, axes.mesh(ranks), axes.placements())


def _pieces(name: str, rule: Rule, tp: int) -> int:
    """Into how many pieces tp ranks cut: no more than there are heads."""
    if rule.heads is None or rule.heads % tp == 0:
        return tp
    if tp % rule.heads:
        words = f"{name}: tp={tp} neither divides its {rule.heads} heads nor is a multiple of them"
        raise LayoutError(words)
    return rule.heads


class _Axes:
    """The mesh of one tensor while it is put together: its dimensions of more than one rank."""

    def __init__(self, tensor: str, dimensions: int, rule: Rule) -> None:
        self._tensor, self._dimensions, self._rule = tensor, dimensions, rule
        self._axes: list[tuple[str, int, Placement]] = []

    def shard(self, dim: int) -> Shard:
        """Raises LayoutError where the rule is for tensors of more dimensions."""
        if not 0 <= dim < self._dimensions:
            rule = f"the rule for {self._rule.match!r:.80} cuts dimension {dim}"
            raise LayoutError(f"{self._tensor} has {self._dimensions} dimensions, and {rule}")
        return Shard(dim)

    def add(self, name: str, extent: int, placement: Placement) -> None:
        if extent > 1:
            self._axes.append((name, extent, placement))

    def mesh(self, ranks: NDArray[np.int64]) -> Mesh:
        axes = self._axes or [("one", 1, Replicate())]
        return Mesh([extent for _, extent, _ in axes], [name for name, _, _ in axes], ranks)

    def placements(self) -> list[Placement]:
        """fsdp cuts what the others have cut before it, though its dimension is further out."""
        inner = [n for name, n, cut in self._axes if name != "fsdp" and cut == Shard(0)]
        strided = StridedShard(0, math.prod(inner))
        made = [
            strided if (name, cut) == ("fsdp", Shard(0)) else cut for name, _, cut in self._axes
        ]
        return made or [Replicate()]
