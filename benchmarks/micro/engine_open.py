"""How long it takes to open and close an engine, the first time in a process and later.

python -m benchmarks.micro.engine_open [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass

import transport


@dataclass(frozen=True)
class EngineOpen:
    """Milliseconds; the later ones are medians."""

    load_ms: float  # the modules behind transport.Engine, the native one among them
    first_ms: float  # the first open and close
    open_ms: float
    close_ms: float
    both_ms: float


def measure(rounds: int = 15) -> EngineOpen:
    begin = time.perf_counter()
    _ = transport.Engine  # loaded when first asked for
    load = time.perf_counter() - begin
    begin = time.perf_counter()
    transport.Engine().close()
    first = time.perf_counter() - begin
    opened, closed, both = [], [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        engine = transport.Engine()
        middle = time.perf_counter()
        engine.close()
        end = time.perf_counter()
        opened.append(middle - begin)
        closed.append(end - middle)
        both.append(end - begin)
    medians = [statistics.median(times) * 1e3 for times in (opened, closed, both)]
    return EngineOpen(load * 1e3, first * 1e3, *medians)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps(asdict(found)))
    else:
        print(f"loading the modules   {found.load_ms:7.1f} ms")
        print(f"first open and close  {found.first_ms:7.1f} ms")
        print(f"open                  {found.open_ms:7.1f} ms")
        print(f"close                 {found.close_ms:7.1f} ms")
        print(f"open and close        {found.both_ms:7.1f} ms")


if __name__ == "__main__":
    main()
