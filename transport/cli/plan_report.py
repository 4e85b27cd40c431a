"""What `transport plan` found: the JSON of docs/reference/plan-json.md, and its words. Pure.

May import sharding and types. Link speeds are GB/s with GB = 1e9 bytes; times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.types import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transport.sharding.traffic import Traffic

SCHEMA = 1


@dataclass(frozen=True)
class Link:
    """What a transfer costs: its overhead, and its bytes at a rate."""

    gb_per_s: float
    overhead_us: float

    def seconds(
        self, transfers: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Both terms: transfers x overhead, bytes / bandwidth."""
        overhead = transfers.astype(np.float64) * (self.overhead_us * 1e-6)
        return overhead, nbytes.astype(np.float64) / (self.gb_per_s * 1e9)


@dataclass(frozen=True)
class Busiest:
    """The rank whose link takes longest; all others are done by then."""

    side: str  # "source" or "target"
    rank: int
    transfers: int
    nbytes: int
    overhead_s: float
    bytes_s: float

    @property
    def total_s(self) -> float:
        return self.overhead_s + self.bytes_s


@dataclass(frozen=True)
class Side:
    """One end of the move, in words."""

    spread: str  # "fsdp=8"
    ranks: int


@dataclass(frozen=True)
class Report:
    """One run of `transport plan`."""

    model: str
    tensors: int
    nbytes: int  # of the model, once
    source: Side
    target: Side
    rank: int
    rank_plan_s: float
    rank_copies: int
    rank_bytes: int
    cluster_plan_s: float
    traffic: Traffic
    link: Link

    def busiest(self) -> Busiest:
        traffic, found = self.traffic, []
        sides = ("source", traffic.sent_by), ("target", traffic.sent_to)
        for side, sent in sides:
            overhead, moving = self.link.seconds(sent.transfers, sent.wire)
            rank = int((overhead + moving).argmax())
            facts = int(sent.transfers[rank]), int(sent.wire[rank])
            found.append(Busiest(side, rank, *facts, float(overhead[rank]), float(moving[rank])))
        return max(found, key=lambda busy: busy.total_s)

    def to_json(self) -> dict[str, Any]:
        traffic, busy = self.traffic, self.busiest()
        return {
            "schema": SCHEMA,
            "model": {"name": self.model, "tensors": self.tensors, "bytes": self.nbytes},
            "from": {"parallelism": self.source.spread, "ranks": self.source.ranks},
            "to": {"parallelism": self.target.spread, "ranks": self.target.ranks},
            "rank": self.rank,
            "rank_plan_s": self.rank_plan_s,
            "rank_copies": self.rank_copies,
            "rank_bytes": self.rank_bytes,
            "cluster_plan_s": self.cluster_plan_s,
            "bytes": traffic.nbytes,
            "lower_bound_bytes": traffic.lower_bound,
            "bytes_by_place": dict(zip(_PLACES, traffic.by_tier.tolist())),
            "transfers": traffic.transfers,
            "busiest_source_bytes": traffic.busiest,
            "least_possible_busiest_bytes": traffic.least_busiest,
            "imbalance": traffic.imbalance,
            "max_over_mean": traffic.max_over_mean,
            "source_bytes": traffic.sent_by.nbytes.tolist(),
            "target_bytes": traffic.sent_to.nbytes.tolist(),
            "time": {
                "gb_per_s": self.link.gb_per_s,
                "overhead_us": self.link.overhead_us,
                "busiest": {"side": busy.side, "rank": busy.rank},
                "transfers": busy.transfers,
                "bytes": busy.nbytes,
                "overhead_s": busy.overhead_s,
                "bytes_s": busy.bytes_s,
                "total_s": busy.total_s,
            },
        }

    def rows(self) -> list[tuple[str, str]]:
        """Label and words, line by line."""
        traffic = self.traffic
        return [
            ("model", f"{self.model}: {self.tensors} tensors, {format_bytes(self.nbytes)}"),
            ("from", f"{self.source.spread}: {self.source.ranks} ranks"),
            ("to", f"{self.target.spread}: {self.target.ranks} ranks"),
            ("bytes", f"{_exact(traffic.nbytes)} between processes"),
            ("lower bound", f"{_exact(traffic.lower_bound)}{_over(traffic)}"),
            *self._places(),
            ("transfers", f"{traffic.transfers}, {self._each()} each on average"),
            ("sources send", _range(traffic.sent_by.nbytes)),
            ("targets get", _range(traffic.sent_to.nbytes)),
            ("imbalance", self._imbalance()),
            ("time", self._time()),
            ("planning", self._planning()),
        ]

    def _places(self) -> list[tuple[str, str]]:
        by_tier = self.traffic.by_tier.tolist()
        if not any(by_tier[:-1]):
            return []
        words = [f"{format_bytes(n)} {place}" for place, n in zip(_WORDS, by_tier) if n]
        return [("of all bytes", ", ".join(words))]

    def _each(self) -> str:
        total = int(self.traffic.by_tier.sum())
        return format_bytes(total // max(1, self.traffic.transfers))

    def _imbalance(self) -> str:
        traffic = self.traffic
        return (
            f"{traffic.imbalance:.4f}: the busiest source sends {format_bytes(traffic.busiest)}, "
            f"the least possible is {format_bytes(traffic.least_busiest)}; "
            f"max/mean {traffic.max_over_mean:.4f}"
        )

    def _time(self) -> str:
        busy, link = self.busiest(), self.link
        return (
            f"{_seconds(busy.total_s)} = {busy.transfers} transfers x {link.overhead_us:g} us "
            f"({_seconds(busy.overhead_s)}) + {format_bytes(busy.nbytes)} / {link.gb_per_s:g} GB/s "
            f"({_seconds(busy.bytes_s)}): {busy.side} rank {busy.rank}, the slowest link"
        )

    def _planning(self) -> str:
        return (
            f"{_seconds(self.rank_plan_s)} for target rank {self.rank} alone "
            f"({self.rank_copies} copies, {format_bytes(self.rank_bytes)}), "
            f"{_seconds(self.cluster_plan_s)} for all ranks"
        )


_PLACES = ("process", "host", "rail", "far")
_WORDS = ("within a process", "within a host", "on one rail", "between hosts")


def _exact(count: int) -> str:
    return f"{format_bytes(count)} ({count} B)"


def _over(traffic: Traffic) -> str:
    if traffic.nbytes == traffic.lower_bound:
        return ": no byte more is sent"
    return f": {traffic.nbytes / max(1, traffic.lower_bound):.4f} of it is sent"


def _range(nbytes: NDArray[np.int64]) -> str:
    busy, idle = int(nbytes.argmax()), int((nbytes == 0).sum())
    if nbytes.min() == nbytes.max():
        return f"{format_bytes(int(nbytes.max()))} each"
    words = (
        f"{format_bytes(int(nbytes.min()))} to {format_bytes(int(nbytes.max()))} (rank {busy}), "
        f"mean {format_bytes(int(nbytes.mean()))}"
    )
    return f"{words}; {idle} have none" if idle else words


def _seconds(value: float) -> str:
    return (
        f"{value * 1e6:.3g} us"
        if value < 1e-3
        else (f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s")
    )
