"""Transfers between two processes of this machine against what C makes of the same addresses.

    python -m benchmarks.p2p.same_host [--rounds N] [--most BYTES] [--json FILE] [ROW...]

Every transfer is prepared and run from Python. Within a row all sides take turns in one process, on
the same memory; a ratio is the median of those within each round. Rows are named FROM-SIZE and
FROM-SIZExBLOCKS:

- pool: a read of the peer's pool memory into private memory, against the better of memcpy and
  non-temporal stores between the same addresses, with as many threads as copy here: one up to a
  chunk, else all, two at most
- private: a read or write of private memory, against process_vm_readv and process_vm_writev

Blocks are in random order and touch on neither side. Exit status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.baselines.raw_copy import RawCopy
from benchmarks.p2p import pairs
from benchmarks.p2p.measures import Measure
from transport import Blocks, Read, Write
from transport import ffi as door
from transport.cli import facts
from transport.cli.copy_limit import KINDS
from transport.cli.options import rounded

if TYPE_CHECKING:
    from collections.abc import Callable

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB)
CHUNK = MIB  # the default of TRANSPORT_CHUNK_BYTES
_GAP = 64
_SHORT_NS = 5_000_000  # so much of each side per turn, at most _MOST times
_MOST = 500


@dataclass(frozen=True)
class Row:
    """What is moved, and which figure is asked for."""

    memory: str  # of the peer: "pool" or "private"
    size: int  # of a block
    count: int = 1
    op: str = "read"
    least: float | None = None  # of the rate of the best other side
    beyond_us: float | None = None  # at most so much longer than that

    @property
    def name(self) -> str:
        size = f"{self.size // MIB}MiB" if self.size >= MIB else f"{self.size // KIB}KiB"
        blocks = f"x{self.count}" if self.count > 1 else ""
        return f"{self.memory}-{self.op}-{size}{blocks}"

    @property
    def span(self) -> int:
        """Bytes from the first block to the end of the last."""
        return self.count * self.size + (self.count - 1) * _GAP

    @property
    def threads(self) -> int:
        """That copy: the caller and the engine's own, where there is more than a chunk."""
        return 1 if self.size * self.count <= CHUNK else min(2, len(os.sched_getaffinity(0)))


def rows() -> list[Row]:
    found = [Row("pool", size, least=0.95 if size >= MIB else None) for size in SIZES]
    for op in ("read", "write"):
        found.append(Row("private", SIZES[0], op=op, beyond_us=0.6))
        found += [Row("private", size, op=op, least=0.9) for size in SIZES[1:]]
    for memory in ("pool", "private"):
        found += [Row(memory, size, count=1024) for size in SIZES[:3]]
    # A UCX put into its own shared memory is a memcpy and a function call.
    found.append(Row("pool", 4 * KIB, 1000, "write", least=0.5))
    found += [Row("pool", 16 * KIB, 4096, "write"), Row("private", 16 * KIB, 4096, "write")]
    return found


class _Sides:
    """The transfer, and what it is compared with, on one pair of memories."""

    def __init__(self, row: Row, pair: pairs.Ends) -> None:
        self._row, self._pair = row, pair
        self._local = np.zeros(row.span, np.uint8)
        self._seen: Any = None  # the peer's pool memory, as it is mapped here
        offsets = [i * (row.size + _GAP) for i in range(row.count)]
        random.Random(row.count).shuffle(offsets)
        self._raw = RawCopy(row.size, offsets)
        if row.count == 1:
            here: Any = self._local
            there: Any = pair.remote[: row.size]
        else:
            here = Blocks(self._local, offsets, row.size)
            there = Blocks(pair.remote, offsets, row.size)
        request = Read(there, here) if row.op == "read" else Write(here, there)
        self.prepared = pair.engine.prepare([request], provider="shm")

    def turns(self) -> dict[str, Callable[[], int]]:
        """Every side, by name: one turn of it is the median of a few milliseconds' worth."""
        sides: dict[str, Callable[[int], list[int]]] = {pairs.OURS: self._ours}
        if self._row.memory == "private":
            sides["process_vm"] = self._process_vm
        elif self._row.count > 1:
            sides["memcpy"] = lambda turns: self._raw.memcpy(*self._mapped(), turns)
        else:
            sides |= {kind: self._limit(kind) for kind in KINDS}
        return {name: _repeated(side) for name, side in sides.items()}

    def _ours(self, turns: int) -> list[int]:
        run, clock = self.prepared.run, time.perf_counter_ns
        times: list[int] = []
        for _ in range(turns):
            begin = clock()
            run()
            times.append(clock() - begin)
        return times

    def _process_vm(self, turns: int) -> list[int]:
        pair, row = self._pair, self._row
        local = self._local.ctypes.data
        return self._raw.process_vm(pair.pid, row.op, local, pair.address, turns)

    def _limit(self, kind: str) -> Callable[[int], list[int]]:
        to, source = (door.ffi.cast("char *", address) for address in self._mapped())
        row = self._row

        def turn(turns: int) -> list[int]:
            ns = door.ffi.new("uint64_t[]", turns)
            call = door.lib.tn_copy_measure
            door.check(call(KINDS[kind], to, source, row.size, row.threads, turns, ns))
            return list(ns)

        return turn

    def _mapped(self) -> tuple[int, int]:
        """Where to and where from: the private memory, and a mapping of the peer's pool memory or,
        because that is read-only, of ours for a write.
        """
        local = self._local.ctypes.data
        if self._row.op == "write":
            return self._pair.buffer.ctypes.data, local
        if self._seen is None:
            self._seen = self._pair.engine.map(self._pair.remote).numpy()
        return local, self._seen.ctypes.data


def _repeated(side: Callable[[int], list[int]]) -> Callable[[], int]:
    each = statistics.median(side(3))
    turns = max(1, min(_MOST, int(_SHORT_NS / max(each, 1))))
    return lambda: int(statistics.median(side(turns)))


def measure(row: Row, rounds: int) -> Measure:
    with pairs.ends("shm", row.memory, row.span) as pair:
        sides = _Sides(row, pair)
        times = pairs.alternate(sides.turns(), rounds)
        path = {"pool": "mapped", "private": "process_vm"}[row.memory]
        if sides.prepared.path != path:
            raise SystemExit(f"{row.name}: went by {sides.prepared.path!r}, not by {path!r}")
        return _judge(row, times)


def _judge(row: Row, times: pairs.Times) -> Measure:
    us = {name: statistics.median(values) / 1e3 for name, values in times.items()}
    best = min((name for name in us if name != pairs.OURS), key=lambda name: us[name])
    ours, other, total = us[pairs.OURS], us[best], row.size * row.count
    details: dict[str, Any] = {
        "bytes": total,
        "blocks": row.count,
        "threads": row.threads,
        "us": us,
        "best_us": {name: min(values) / 1e3 for name, values in times.items()},
        "gb_per_s": {name: total / value / 1e3 for name, value in us.items()},
    }
    if row.beyond_us is not None:
        found = ours - other
        target = f"<= {row.beyond_us} us more"
        return Measure(row.name, found, "us more", target, found <= row.beyond_us, details)
    # Within each round: what slows the machine for a while slows both.
    ratio = statistics.median(b / a for a, b in zip(times[pairs.OURS], times[best], strict=True))
    least = row.least
    target = f">= {least}" if least else "-"
    return Measure(row.name, ratio, "ratio", target, least is None or ratio >= least, details)


def _line(measure: Measure) -> str:
    us, rates = measure.details["us"], measure.details["gb_per_s"]
    behind = ", ".join(f"{name} {us[name]:.2f} us ({rates[name]:.1f} GB/s)" for name in us)
    verdict = "" if measure.target == "-" else "met" if measure.met else "MISSED"
    figure = f"{measure.found:.2f} {measure.unit}"
    threads = measure.details["threads"]
    return f"{measure.name:<26} {threads} {figure:<14} {measure.target:<15} {verdict:<7} {behind}"


def _arguments(known: dict[str, Row]) -> tuple[list[Row], int, Path | None]:
    """The rows that are wanted, how many turns, and where the JSON goes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    text = "or its beginning: " + ", ".join(known)
    parser.add_argument("names", nargs="*", metavar="ROW", help=text)
    parser.add_argument("--rounds", type=int, default=21, help="turns of each side (at least 7)")
    parser.add_argument("--most", type=int, default=1 << 31, help="bytes of a row, at most")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    named = tuple(arguments.names) or ("",)
    rows = [it for it in known.values() if it.span <= arguments.most and it.name.startswith(named)]
    if not rows or arguments.rounds < 7:
        parser.error("no such row" if arguments.rounds >= 7 else "--rounds >= 7")
    return rows, arguments.rounds, arguments.json


def main() -> None:
    chosen, rounds, file = _arguments({row.name: row for row in rows()})
    found: list[Measure] = []
    for row in chosen:
        found.append(measure(row, rounds))
        print(_line(found[-1]), flush=True)
    if file is not None:
        result = {"schema": 1, "host": facts.host(), "measures": [asdict(it) for it in found]}
        file.write_text(json.dumps(rounded(result), indent=1) + "\n")
    if not all(measure.met for measure in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
