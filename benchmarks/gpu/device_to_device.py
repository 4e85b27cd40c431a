"""Tensors between two processes on one GPU, against a copy between two tensors of one process.

    python -m benchmarks.gpu.device_to_device [--rounds N] [--kinds pool,plain] [--json FILE]

The copy is torch's `copy_` of contiguous tensors (cudaMemcpyAsync) with a synchronization after it.
Ours is a prepared read of the other process's tensor, run from Python to its end. Both take turns
on the same destination; medians are compared. Exit status 1 when 256 MiB and more are read at less
than 0.95 of the copy's rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transport

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

MIB = 1 << 20
SIZES = (64 << 10, MIB, 16 * MIB, 256 * MIB, 1024 * MIB)
LEAST, FROM = 0.95, 256 * MIB


def timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def measure(engine: transport.Engine, kind: str, nbytes: int, rounds: int) -> dict[str, Any]:
    import torch
    from gpu_peer import GpuPeer, make

    count = nbytes // 4
    source = torch.empty(count, dtype=torch.int32, device="cuda")
    into = make(engine, kind, count)

    def copy() -> None:
        into.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    with GpuPeer(kind, count) as peer, engine.prepare(transport.Read(peer.remote, into)) as read:
        pairs = [(timed(copy), timed(read.run)) for _ in range(rounds + 3)][3:]
        copies, reads = (statistics.median(side) for side in zip(*pairs, strict=True))
        path = f"{read.provider}: {read.path}"
    return {
        "kind": kind,
        "bytes": nbytes,
        "path": path,
        "copy_us": round(copies * 1e6, 1),
        "read_us": round(reads * 1e6, 1),
        "read_GBps": round(nbytes / reads / 1e9, 2),
        "ratio": round(copies / reads, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kinds", default="pool,plain")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch

    rows: list[dict[str, Any]] = []
    with transport.Engine() as engine:
        for kind in options.kinds.split(","):
            for nbytes in SIZES:
                rows.append(measure(engine, kind, nbytes, options.rounds))
                print(json.dumps(rows[-1]), flush=True)
    missed = [row for row in rows if row["bytes"] >= FROM and row["ratio"] < LEAST]
    report = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "rows": rows}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    kept = len(rows) - len(missed)
    print(f"{kept} of {len(rows)} rows as asked for (>= {LEAST} from 256 MiB on)")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
