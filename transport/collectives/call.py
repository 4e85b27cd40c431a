"""One collective operation as one rank asks for it: plain data, checked already.

May import reduction.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from transport.collectives.reduction import Reduce, Reduction

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class Kind(enum.Enum):
    """What a call does; the value is its name in errors, tables and the command line."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_TO_ALL = "all_to_all"
    GATHER = "gather"
    SCATTER = "scatter"
    SEND = "send"
    RECV = "recv"
    BARRIER = "barrier"


Parts: TypeAlias = "Sequence[torch.Tensor]"
"""Dense tensors of one dtype on one device, without overlap; never written to as `source`."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a carrier is asked to do. Every rank of the group makes the same calls in one order
    (SEND and RECV aside, which only meet their counterpart).

    What `source` and `target` hold, for a group of n ranks:

    | kind | source | target |
    | --- | --- | --- |
    | ALL_REDUCE | one tensor | one of the same size; may be the same tensor |
    | BROADCAST | one, at `root`; elsewhere none | one; at the root none, or the same as source |
    | REDUCE | one | one at `root` (may be the same tensor); elsewhere none |
    | ALL_GATHER | one | n, in rank order; the own one may be `source` itself |
    | GATHER | one | n at `root`, elsewhere none |
    | SCATTER | n at `root`, elsewhere none | one |
    | REDUCE_SCATTER | n, in rank order | one; may be the own one of `source` |
    | ALL_TO_ALL | n: what goes to each rank | n: what comes from each; sizes may differ |
    | SEND / RECV | one / none | none / one; `peer` is the other rank, `tag` tells messages apart |
    | BARRIER | none | none |
    """

    kind: Kind
    source: Parts = ()
    target: Parts = ()
    reduction: Reduce = Reduction.SUM
    root: int = 0
    peer: int = -1
    tag: int = 0

    @property
    def bytes(self) -> int:
        """Of all parts that this rank has, without counting what is both source and target."""
        parts = {part.data_ptr(): part.nbytes for part in (*self.source, *self.target)}
        return sum(parts.values())

    @property
    def unit(self) -> int:
        """Bytes of one part, which all ranks have alike; 0 for ALL_TO_ALL, whose parts differ."""
        part = next(iter((*self.source, *self.target)), None)
        return 0 if part is None or self.kind is Kind.ALL_TO_ALL else part.nbytes


def gpu_of(call: Call) -> int | None:
    """Which GPU its tensors are on, by its number in this process; None: none."""
    part = next(iter((*call.source, *call.target)), None)
    return None if part is None or part.device.type == "cpu" else part.device.index or 0
