"""Regions of GPU memory that a peer leases: each costs the same, however many there are.

What is counted are instructions of gpu_ipc's own files, which load and scheduler do not change.
"""

from __future__ import annotations

import shutil

import pytest

from benchmarks.micro.programs import ROOT, build, instructions

_FILES = {path.name for path in (ROOT / "native/providers/gpu_ipc").glob("*.[ch]")}
_FILES |= {"index.c", "index.h", "list.h"}


def _per_region(regions: int) -> float:
    counts = instructions("bench_leases", str(regions))
    return sum(counts[name] for name in _FILES) / regions


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind: not installed")
def test_each_costs_the_same() -> None:
    build()
    few, many = _per_region(250), _per_region(1000)
    assert many < 1.5 * few, f"{few:.0f} instructions for each of 250, {many:.0f} of 1000"
