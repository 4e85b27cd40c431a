"""A rank of a data-parallel job is killed with kill -9 in mid-step, and replaced.

The job is examples/elastic_training.py: DDP over gloo, and Adam. `mb` is what parameters and
moments of a rank take. Cold: the new process is a fresh interpreter, which imports torch. Forked:
from one that has imported it. Warm: a spare waits.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.recovery.state import width_for

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

HOSTS = {
    "cold": {"method": "spawn"},
    "forked": {"preload": ("torch", "torch._dynamo")},
    "warm": {"preload": ("torch", "torch._dynamo"), "spares": 1},
}
PARTS = ("detect", "respawn", "restore", "meet", "total")


def once(how, ranks, mb):
    """One loss, in the middle of the third step; seconds."""
    import elastic_training

    width = width_for(mb * 1_000_000)
    job = elastic_training.run(ranks, 4, width, die=(2, ranks // 2), **HOSTS[how])
    (recovery,) = job.recoveries
    row = {part: getattr(recovery, part) for part in PARTS}
    return row | {"idle": max(recovery.idle), "moved": recovery.moved} | {"of": asdict(recovery)}


def measure(ranks=8, mb=90, rounds=3):
    """{how: {part: median seconds, "rounds": [...]}}; `idle` is that of the healthy rank that
    waited longest."""
    found = {how: [] for how in HOSTS}
    for _ in range(rounds):
        for how, rows in found.items():
            rows.append(once(how, ranks, mb))
    return {
        how: {part: statistics.median(row[part] for row in rows) for part in (*PARTS, "idle")}
        | {"rounds": rows}
        for how, rows in found.items()
    }
