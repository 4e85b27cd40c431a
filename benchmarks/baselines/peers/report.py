"""What the times mean: rows, ratios, targets; the JSON and the tables. Pure arithmetic and text."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.baselines.peers.ways import WAYS, Way
from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.baselines.peers.rounds import Found

SCHEMA = 1
KIB, MIB = 1 << 10, 1 << 20
MANY = 1024  # the batch that every size is measured with, beside 1
BLOCKS = (4 * KIB, 1000)
SCATTERED = (16 * KIB, 4096)


@dataclass(frozen=True)
class Row:
    """One way at one case. Times are of a submission of the whole batch; None: no figure."""

    way: Way
    bytes: int
    batch: int
    asked_batch: int
    rounds: tuple[float, ...] = ()  # the median of each, in us: how much the machine moved
    submissions: int = 0
    verified: bool = False
    median_us: float | None = None
    quartiles_us: tuple[float, float] | None = None
    gb_per_s: float | None = None
    reason: str = ""

    @property
    def counts(self) -> bool:
        """Whether a ratio may be made of it: measured, and every byte in its place."""
        return self.verified and self.median_us is not None


def row(found: Found) -> Row:
    case, times = found.case, [ns for turn in found.rounds for ns in turn]
    facts: dict[str, Any] = {"bytes": case.size, "batch": case.batch, "asked_batch": case.asked}
    if found.reason or not times:
        return Row(found.way, **facts, reason=found.reason or "no time was taken")
    median = max(1.0, statistics.median(times))
    low, high = quartiles(times)
    return Row(
        found.way,
        **facts,
        rounds=tuple(statistics.median(turn) / 1e3 for turn in found.rounds),
        submissions=len(times),
        verified=found.verified,
        median_us=median / 1e3,
        quartiles_us=(low / 1e3, high / 1e3),
        gb_per_s=case.bytes / median,
        reason="" if found.verified else "the bytes that arrived are wrong",
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third, linear between ranks."""
    if len(values) == 1:
        return values[0], values[0]
    cuts = statistics.quantiles(values, n=4, method="inclusive")
    return cuts[0], cuts[2]


class Rows:
    """All rows of a run, by way, size and batch."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.all = list(rows)
        self._by_key = {(row.way.name, row.bytes, row.asked_batch): row for row in self.all}

    def __iter__(self) -> Any:
        return iter(self.all)

    def find(self, way: str, size: int, batch: int) -> Row | None:
        return self._by_key.get((way, size, batch))

    def us(self, way: str, size: int, batch: int) -> float | None:
        """The median; None where there is none that counts."""
        row = self.find(way, size, batch)
        return row.median_us if row is not None and row.counts else None

    def fastest(self, size: int, batch: int, among: Callable[[Way], bool]) -> Row | None:
        rows = [
            row
            for row in self.all
            if (row.bytes, row.asked_batch) == (size, batch) and row.counts and among(row.way)
        ]
        return min(rows, key=lambda row: row.median_us or 0.0, default=None)

    def cases(self) -> list[tuple[int, int]]:
        """(bytes, batch as asked), in the order in which they were measured."""
        return list(dict.fromkeys((row.bytes, row.asked_batch) for row in self.all))


# ----------------------------------------------------------------------------------------- targets
@dataclass(frozen=True)
class Target:
    """`found` None: not measured, and `behind` says what is missing.

    `quiet` is the same ratio of the first quartiles: how it was while the machine was left alone.
    """

    name: str
    asked: str
    found: float | None
    met: bool | None
    behind: str
    quiet: float | None = None
    ratios: dict[str, float] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()  # peers that may be the best one and have no figure

    @property
    def verdict(self) -> str:
        """A miss is one whoever else is absent; what is met is so among those that ran."""
        if self.met and self.lacking:
            return f"met, but without {', '.join(self.lacking)}"
        return {True: "met", False: "MISSED", None: "not measured"}[self.met]


def targets(rows: Rows) -> list[Target]:
    found = [
        _time("4 KiB prepared to pool, of NIXL's prepared", rows, 0.2, "NIXL write", (4 * KIB, 1)),
        _time("a block of 1000 x 4 KiB to pool, of UCX own", rows, 2.0, "UCX put own", BLOCKS),
    ]
    for memory, least in (("pool", 2.0), ("private", 1.0)):
        name = f"4096 x 16 KiB scattered into {memory}, rate of NIXL's"
        found.append(
            _rates(name, rows, least, f"ours write {memory}", [SCATTERED], _library("nixl"))
        )
    name = "256 MiB pool to private, rate of the best peer"
    found.append(_rates(name, rows, 1.5, "ours read pool", [(256 * MIB, 1)], lambda _: True))
    for batch in (1, MANY):
        cases = [case for case in rows.cases() if case[1] == batch]
        for op in ("write", "read"):
            name = f"private to private, {op}, batch {batch}, of the best peer in Python"
            found.append(_rates(name, rows, 1.0, f"ours {op} private", cases, _python(op)))
        name = f"tcp, batch {batch}, rate of gloo's"
        found.append(_rates(name, rows, 2.0, "ours write tcp", cases, _library("gloo")))
    large = [case for case in rows.cases() if case[0] >= MIB]
    name = "tcp, from 1 MiB, rate of the best bare sockets"
    found.append(_rates(name, rows, 0.95, "ours write tcp", large, _library("sockets"), "limit"))
    return found


def _library(name: str) -> Callable[[Way], bool]:
    return lambda way: way.library == name


def _python(op: str) -> Callable[[Way], bool]:
    return lambda way: way.python and way.op == op


def _time(name: str, rows: Rows, most: float, peer: str, case: tuple[int, int]) -> Target:
    """Our time to pool memory as a share of a peer's."""
    asked, names = f"<= {most:g}", ("ours write pool", peer)
    found = [rows.find(way, *case) for way in names]
    lacking = [way for way, row in zip(names, found) if row is None or not row.counts]
    if lacking:
        return Target(name, asked, None, None, f"no figure of {lacking[0]}")
    pair = _Pair(*found)
    share = 1 / pair.ratio
    return Target(name, asked, share, share <= most, pair.text, 1 / pair.quiet, {pair.label: share})


@dataclass(frozen=True)
class _Pair:
    """A row of ours and one of a peer, of the same case."""

    ours: Any  # Row, both with figures
    peer: Any

    @property
    def ratio(self) -> float:
        return self.peer.median_us / self.ours.median_us

    @property
    def quiet(self) -> float:
        return self.peer.quartiles_us[0] / self.ours.quartiles_us[0]

    @property
    def label(self) -> str:
        return _case_name(self.ours.bytes, self.ours.batch)

    @property
    def text(self) -> str:
        times = duration(self.ours.median_us), duration(self.peer.median_us)
        return f"{self.label}: {times[0]}; {self.peer.way.name} {times[1]}"


def _rates(
    name: str,
    rows: Rows,
    least: float,
    ours: str,
    cases: Sequence[tuple[int, int]],
    among: Callable[[Way], bool],
    kind: str = "peer",
) -> Target:
    """Our rate over the fastest peer's, or limit's, where it is lowest."""
    asked = f">= {least:g}"
    peers = [way for way in WAYS if way.kind == kind and among(way)]
    pairs: list[_Pair] = []
    lacking: dict[str, None] = {}
    for case in cases:
        mine, best = rows.find(ours, *case), rows.fastest(*case, lambda way: way in peers)
        if mine is not None and mine.counts and best is not None:
            pairs.append(_Pair(mine, best))
            lacking |= {way.library: None for way in peers if rows.us(way.name, *case) is None}
    if not pairs:
        return Target(name, asked, None, None, f"no figures of {ours} and a peer")
    worst = min(pairs, key=lambda pair: pair.ratio)
    ratios = {pair.label: pair.ratio for pair in pairs}
    met = worst.ratio >= least
    return Target(name, asked, worst.ratio, met, worst.text, worst.quiet, ratios, tuple(lacking))


def _case_name(size: int, batch: int) -> str:
    return format_bytes(size) if batch == 1 else f"{batch} x {format_bytes(size)}"


# ------------------------------------------------------------------------------------------- output
def to_json(rows: Rows, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **facts,
        "rows": [_row_json(row, rows) for row in rows],
        "targets": [{**asdict(it), "verdict": it.verdict} for it in targets(rows)],
    }


def _row_json(row: Row, rows: Rows) -> dict[str, Any]:
    way = row.way
    return {
        "way": way.name, "library": way.library, "kind": way.kind, "op": way.op,
        "bytes": row.bytes, "batch": row.batch, "asked_batch": row.asked_batch,
        "rounds_us": row.rounds, "submissions": row.submissions, "verified": row.verified,
        "median_us": row.median_us, "quartiles_us": row.quartiles_us, "gb_per_s": row.gb_per_s,
        "rate_of_ours": rate_of_ours(row, rows), "reason": row.reason,
    }  # fmt: skip


def rate_of_ours(row: Row, rows: Rows) -> dict[str, float]:
    """Its rate as a share of ours with the same operation, for each of our ways."""
    shares: dict[str, float] = {}
    if row.counts and row.median_us is not None:
        for way in WAYS:
            if way.kind == "ours" and way.op == row.way.op:
                ours = rows.us(way.name, row.bytes, row.asked_batch)
                if ours is not None:
                    shares[way.name] = ours / row.median_us
    return shares


def tables(rows: Rows) -> str:
    """Markdown: a table for batches of one, one for all others, the reasons, the targets."""
    single = [case for case in rows.cases() if case[1] == 1]
    many = [case for case in rows.cases() if case[1] != 1]
    parts = [_table(rows, cases) for cases in (single, many) if cases]
    reasons = dict.fromkeys(f"- {row.way.name}: {row.reason}" for row in rows if row.reason)
    if reasons:
        parts.append("\n".join(["Not measured, or not throughout:", "", *reasons]))
    return "\n\n".join([*parts, target_table(targets(rows))])


def _table(rows: Rows, cases: Sequence[tuple[int, int]]) -> str:
    heads = [_head(rows, *case) for case in cases]
    lines = [f"| GB/s (median time) | {' | '.join(heads)} |", "| --- |" + " --- |" * len(heads)]
    for name in dict.fromkeys(row.way.name for row in rows):
        cells = [_cell(rows.find(name, *case)) for case in cases]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _head(rows: Rows, size: int, asked: int) -> str:
    batch = next(row.batch for row in rows if (row.bytes, row.asked_batch) == (size, asked))
    return _case_name(size, batch)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if not row.counts:
        return "wrong" if row.median_us is not None else "-"
    return f"{row.gb_per_s:.3g} ({duration(row.median_us)})"


def duration(us: float | None) -> str:
    """Three digits and a unit."""
    if us is None:
        return ""
    for unit, scale in (("us", 1.0), ("ms", 1e3)):
        if us < 999.5 * scale:
            return f"{us / scale:.3g} {unit}"
    return f"{us / 1e6:.3g} s"


def target_table(found: Sequence[Target]) -> str:
    heads = ["target", "asked for", "found", "first quartiles", "", "the worst", "by size"]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for it in found:
        figures = ["" if it is None else f"{it:.2f}" for it in (it.found, it.quiet)]
        sizes = ", ".join(f"{label} {ratio:.2f}" for label, ratio in it.ratios.items())
        cells = [it.name, it.asked, *figures, it.verdict, it.behind, sizes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
