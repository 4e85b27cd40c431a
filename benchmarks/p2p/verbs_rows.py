"""What is compared with perftest: for each row the same work, as both sides are asked for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    # "stream": many under way; "prepared": they were; "single": one after the other; "pingpong"
    kind: str
    op: str
    size: int
    batch: int  # messages of one submission
    window: int  # submissions under way
    submissions: int
    perftest: tuple[str, ...]
    unit: str  # "GB/s", "msg/s", "us"
    target: float
    pyverbs: bool = False
    driver: str = "python"  # of ours: "c" calls the engine from a loop in C, as perftest's is

    def question(self) -> dict[str, Any]:
        names = ("kind", "op", "size", "batch", "window", "submissions", "driver")
        return {name: getattr(self, name) for name in names}

    def figure(self, us: float) -> float:
        """Microseconds per message in the row's unit."""
        return {"GB/s": self.size / us / 1e3, "msg/s": 1e6 / us, "us": us}[self.unit]


def _stream(op: str, size: int, messages: int) -> Row:
    """ib_write_bw keeps 128 messages under way, and so do 16 submissions of 8."""
    tool = f"ib_{op}_bw", "-s", str(size), "-n", str(messages), "-q", "1"
    name = f"{op}-{size // KIB}k" if size < MIB else f"{op}-{size // MIB}m"
    return Row(name, "stream", op, size, 8, 16, messages // 8, tool, "GB/s", 0.95, pyverbs=True)


_N = 2000  # 8-byte messages of one run


def _small(name: str, kind: str, op: str, tool: str, *options: str) -> list[Row]:
    """One message after the other, from Python and from C."""
    command = tool, "-s", "8", "-n", str(_N), *options
    return [
        Row(name + suffix, kind, op, 8, 1, 1, _N, command, "us", 1.3, driver=driver)
        for suffix, driver in (("", "python"), ("-in-c", "c"))
    ]


_LIST = "ib_write_bw", "-s", "4096", "-l", "16", "-n", "8192", "-q", "1"

ROWS = {
    row.name: row
    for row in (
        *(_stream("write", size, n) for size, n in ((64 * KIB, 4096), (256 * KIB, 1024))),
        *(_stream("write", size, n) for size, n in ((MIB, 256), (4 * MIB, 128))),
        *(_stream("read", size, n) for size, n in ((64 * KIB, 4096), (256 * KIB, 1024))),
        *(_stream("read", size, n) for size, n in ((MIB, 256), (4 * MIB, 128))),
        Row("write-4k-list", "prepared", "write", 4096, 256, 2, 32, _LIST, "msg/s", 0.8),
        *_small("write-8", "single", "write", "ib_write_bw", "-t", "1"),
        *_small("ping-pong-8", "pingpong", "write", "ib_write_lat"),
        *_small("read-8", "single", "read", "ib_read_lat"),
    )
}  # fmt: skip
