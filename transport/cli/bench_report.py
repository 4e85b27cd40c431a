"""What a benchmark found: rows, limits, the JSON of docs/reference/bench-json.md, the tables.

May import types; pure. Rates are GB/s with GB = 1e9 bytes, times come from time.perf_counter.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = 1
LIMIT_BYTES = 256 << 20
"""The size that "the copy limit" means when no size is named."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The median rate of one way to copy on this machine."""

    bytes: int
    threads: int
    kind: str  # "memcpy" or "streaming" (non-temporal stores)
    gb_per_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One size. A submission has `batch` messages of `bytes` bytes; times are per submission, and
    `window` submissions were under way at once."""

    provider: str
    op: str
    memory: str
    bytes: int
    batch: int
    window: int
    iterations: int
    gb_per_s_avg: float
    gb_per_s_peak: float
    messages_per_s: float
    p50_us: float
    p99_us: float
    verified: bool
    # For the table only:
    path: str = ""  # how the provider carried it
    limit_bytes: int = 0  # the copy that it is compared with

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        del values["path"], values["limit_bytes"]
        return values


@dataclass(frozen=True, slots=True)
class Label:
    """What a row is about, besides its figures."""

    provider: str
    op: str
    memory: str
    bytes: int
    batch: int
    path: str = ""
    window: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one run of `transport bench`."""

    host: dict[str, Any]
    limits: tuple[Limit, ...]
    rows: tuple[Row, ...] = ()

    def best(self, size: int, *, one_thread: bool = True) -> float:
        """The copy limit at one size: the best way; 0 where it was not measured."""
        found = [x for x in self.limits if x.bytes == size and (x.threads == 1 or not one_thread)]
        return max((limit.gb_per_s for limit in found), default=0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "host": self.host,
            "limit_gb_per_s": self.best(LIMIT_BYTES),
            "limit_all_gb_per_s": self.best(LIMIT_BYTES, one_thread=False),
            "limits": [dataclasses.asdict(limit) for limit in self.limits],
            "rows": [row.to_json() for row in self.rows],
        }


def percentile(values: Sequence[float], q: float) -> float:
    """Between the two nearest ranks, linearly (numpy's default); `values` need no order."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(
    label: Label,
    times_ns: Sequence[int],
    elapsed_ns: int = 0,
    *,
    verified: bool,
    limit_bytes: int = 0,
) -> Row:
    """Turns the times of submissions, each submit to wait, into a row. `elapsed_ns` is that of all
    together, where several were under way at once."""
    moved = label.bytes * label.batch
    total = elapsed_ns or sum(times_ns)
    average = moved * len(times_ns) / total  # bytes per ns are GB per s
    return Row(
        provider=label.provider,
        op=label.op,
        memory=label.memory,
        bytes=label.bytes,
        batch=label.batch,
        window=label.window,
        iterations=len(times_ns),
        gb_per_s_avg=average,
        gb_per_s_peak=moved / min(times_ns) if label.window == 1 else average,
        messages_per_s=label.batch * len(times_ns) / total * 1e9,
        p50_us=percentile(times_ns, 0.5) / 1e3,
        p99_us=percentile(times_ns, 0.99) / 1e3,
        verified=verified,
        path=label.path,
        limit_bytes=limit_bytes,
    )


_COLUMNS = (
    " #bytes", "#batch", "#window", "#iterations", "peak[GB/s]", "average[GB/s]", "rate[msg/s]",
    "p50[us]", "p99[us]", "of limit", "provider", "path", "op", "memory", "data",
)  # fmt: skip


def rows_table(report: Report) -> str:
    """perftest's columns and some more, in plain text that tools can cut."""
    return "\n".join(aligned([list(_COLUMNS), *(_cells(report, row) for row in report.rows)]))


def _cells(report: Report, row: Row) -> list[str]:
    limit = report.best(row.limit_bytes or row.bytes)
    return [
        str(row.bytes),
        str(row.batch),
        str(row.window),
        str(row.iterations),
        f"{row.gb_per_s_peak:.3f}",
        f"{row.gb_per_s_avg:.3f}",
        f"{row.messages_per_s:.0f}",
        f"{row.p50_us:.2f}",
        f"{row.p99_us:.2f}",
        f"{row.gb_per_s_avg / limit:.2f}" if limit else "-",
        row.provider,
        row.path or "-",
        row.op,
        row.memory,
        "verified" if row.verified else "WRONG",
    ]


def limits_table(report: Report) -> str:
    """One line per size and number of threads: both kinds and the better one."""
    lines = [["size", "threads", "memcpy[GB/s]", "streaming[GB/s]", "limit[GB/s]"]]
    for size, threads in dict.fromkeys((x.bytes, x.threads) for x in report.limits):
        rates = {
            limit.kind: limit.gb_per_s
            for limit in report.limits
            if (limit.bytes, limit.threads) == (size, threads)
        }
        shown = [f"{rates[kind]:.2f}" if kind in rates else "-" for kind in ("memcpy", "streaming")]
        lines.append([format_bytes(size), str(threads), *shown, f"{max(rates.values()):.2f}"])
    return "\n".join(aligned(lines))


def aligned(lines: list[list[str]]) -> list[str]:
    """Columns as wide as their widest cell."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(line, widths)) for line in lines]
