"""What describing many blocks costs in Python, in nanoseconds per block, as JSON.

python -m benchmarks.micro.blocks [--rounds N]

Each figure is the median over the rounds of what `prepare` and `close` take, divided by the number
of blocks: checking, describing and copying into C, without moving a byte. The clock is the CPU time
of the calling thread (CLOCK_THREAD_CPUTIME_ID), in which all of it is done.

- one: one contiguous view of all blocks
- blocks: `Blocks` with int64 arrays on both sides, in random order
- pages: `Blocks(pages=...)` with an int32 array on one side, packed memory on the other
- neighbours: `Read`s of views side by side on both sides, which become one range
- views: the same, every other view, so that none touches another
- rows: eight columns of a matrix with as many rows, on both sides
- boxes: the same of rank 4, whose dimensions join nowhere

`views` and `neighbours` have their `Read`s made before the clock starts; `making` is what one of
those costs, with the slices of the tensor and of the handle.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import transport

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK = 64  # bytes
_COUNTS = (10_000, 100_000)


def measure(rounds: int) -> dict[str, Any]:
    """Everything, by name and number of blocks."""
    report: dict[str, Any] = {"unit": "ns per block", "rounds": rounds}
    for count in _COUNTS:
        with transport.Engine(name="owner") as owner, transport.Engine(name="user") as user:
            far = torch.zeros(2 * count, 4, 4, 4, dtype=torch.uint8)
            with owner.register(far) as region:
                cases = _cases(user, region.remote(), count)
                report[str(count)] = {
                    name: _median(case, rounds) / count for name, case in cases.items()
                }
    return report


def _cases(
    engine: transport.Engine, remote: transport.RemoteRegion, count: int
) -> dict[str, Callable[[], object]]:
    local = torch.zeros(2 * count, 4, 4, 4, dtype=torch.uint8)
    packed = local[:count]
    order = np.random.default_rng(0).permutation(2 * count)[:count]
    offsets, there = order * _BLOCK, order[::-1].copy() * _BLOCK
    pages = torch.from_numpy(order.astype(np.int32))

    def reads(step: int) -> list[transport.Read]:
        at = range(0, count * step, step)
        return [transport.Read(remote[i : i + 1], local[i : i + 1]) for i in at]

    beside, apart = reads(1), reads(2)

    def prepare(requests: Any) -> Callable[[], object]:
        return lambda: engine.prepare(requests).close()

    rows = transport.Read(remote[:count, 1:3], local[:count, :2])
    boxes = transport.Read(
        remote[:count, :3, :3, :3], local[:count].permute(0, 2, 1, 3)[:, 1:, 1:, 1:]
    )
    return {
        "one": prepare(transport.Read(remote, local)),
        "blocks": lambda: engine.prepare(
            transport.Read(
                transport.Blocks(remote, there), transport.Blocks(local, offsets, _BLOCK)
            )
        ).close(),
        "pages": lambda: engine.prepare(
            transport.Read(transport.Blocks(remote, pages=pages), packed)
        ).close(),
        "rows": prepare(rows),
        "boxes": prepare(boxes),
        "neighbours": prepare(beside),
        "views": prepare(apart),
        "making": lambda: reads(1),
    }


def _median(case: Callable[[], object], rounds: int) -> float:
    case()
    times: list[int] = []
    for _ in range(rounds):
        gc.collect()
        began = time.thread_time_ns()
        case()
        times.append(time.thread_time_ns() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    print(json.dumps(measure(parser.parse_args().rounds), indent=2))


if __name__ == "__main__":
    main()
