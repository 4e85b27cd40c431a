"""Columns of a matrix over tcp: rows of 64 bytes to 16 KiB, packed and strided here.

    python -m benchmarks.p2p.tcp_rows [--rounds 7] [--json FILE]

The peer has a float32 matrix of 64 MiB; a block of its columns is moved, which is 4096 rows or as
many as make 4 MiB. The last line of each table is as many bytes in one piece. Loopback, one stream.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transport import Engine
from transport.cli import facts
from transport.config import Settings
from transport.testing.processes import PeerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, COLUMNS = 4096, 4096
WIDTHS = (64, 256, 1024, 4096, 16384)  # bytes of a row
MOST = 4 << 20
SIZE = 4 * ROWS * COLUMNS


def cases(engine: Engine, remote: Any) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Name to bytes and how it is begun."""
    found: dict[str, tuple[int, Callable[[], Any]]] = {}
    for width in (*WIDTHS, 0):
        count = min(ROWS, MOST // width) if width else 256
        columns = width // 4 or COLUMNS
        there = remote[:count, :columns]
        packed = np.ones((count, columns), np.float32)
        apart = np.ones((count, 2 * columns), np.float32)[:, :columns]
        for kind, here in (("packed", packed), ("strided", apart))[: 2 if width else 1]:
            size = f"{width} B" if width else "whole"
            found[f"read {size} {kind}"] = (
                packed.nbytes,
                lambda there=there, here=here: engine.read(there, here),
            )
            found[f"write {size} {kind}"] = (
                packed.nbytes,
                lambda there=there, here=here: engine.write(here, there),
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    common: dict[str, Any] = {
        "providers": ("tcp",),
        "secret": secrets.token_bytes(32),
        "settings": Settings.from_env(tcp_streams=1),
    }
    with PeerProcess() as there, Engine(**common) as engine:
        there.call("open", **common, listen="127.0.0.1:0")
        remote = there.call("make", "x", SIZE, shape=(ROWS, COLUMNS), dtype="float32")
        todo = cases(engine, remote)
        times: dict[str, list[int]] = {name: [] for name in todo}
        for turn in range(arguments.rounds + 1):
            for name, (_, begin) in todo.items():
                before = time.perf_counter_ns()
                begin().wait(60)
                if turn:
                    times[name].append(time.perf_counter_ns() - before)
    rates = {name: todo[name][0] / statistics.median(taken) for name, taken in times.items()}
    for name, rate in rates.items():
        print(f"{name:24} {rate:6.2f} GB/s {statistics.median(times[name]) / 1e3:9.0f} us")
    if arguments.json:
        result = {"schema": 1, "host": facts.host(), "ns": times}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
