"""What 100,000 small tensors cost when they are resharded again and again, as JSON.

python -m benchmarks.reshard.many_tensors [--tensors N] [--provider shm] [--rounds N]

Two source ranks in a second process hold half of each tensor's rows; the target rank here pulls all
of it. Every tensor is one of its own, with its own storage and its own region. The clock is
CLOCK_MONOTONIC; medians over the rounds.

- layout_s, plan_s: making the layouts, and the plan for one rank, once
- execution_s: checking, describing and preparing, once, with a plan that is known
- submit_ms: `Execution.start` of the cached plan, until it returns
- run_ms: the same and `wait`
- verified: the first 1,000 tensors and the last one hold what they should, after a run whose
  source was changed by its owner
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import transport
from transport.cli import child, facts
from transport.cli.child import Child
from transport.sharding.execute import Execution
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Shard
from transport.sharding.plan import plan
from transport.sharding.state import StateLayout

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_SHAPE = (8, 16)  # float32: 512 bytes
_RANKS = 2
_VERIFIED = 1000
_SECRET = b"the secret of this benchmark"


def names_of(count: int) -> list[str]:
    return [f"layers.{i // 10}.tensor.{i % 10}" for i in range(count)]


def states(count: int) -> tuple[StateLayout, StateLayout]:
    """Rows on two ranks, and all on one."""
    halves = Layout.placed(_SHAPE, "float32", Mesh((_RANKS,)), [Shard(0)])
    whole = Layout.whole(_SHAPE, "float32")
    names = names_of(count)
    return StateLayout(dict.fromkeys(names, halves)), StateLayout(dict.fromkeys(names, whole))


class Source:
    """The second process."""

    def __init__(self) -> None:
        self.engine = transport.Engine(name="source", listen="127.0.0.1:0", secret=_SECRET)
        self.shards: list[list[torch.Tensor]] = []
        self.regions: list[Any] = []

    def make(self, count: int) -> dict[int, dict[str, transport.RemoteRegion]]:
        half = (_SHAPE[0] // _RANKS, _SHAPE[1])
        self.shards = [[torch.empty(half) for _ in range(count)] for _ in range(_RANKS)]
        regions = [[self.engine.register(it) for it in shard] for shard in self.shards]
        self.regions = regions
        names = names_of(count)
        return {r: {n: it.remote() for n, it in zip(names, regions[r])} for r in range(_RANKS)}

    def fill(self, version: int) -> None:
        for rank, shard in enumerate(self.shards):
            for i, tensor in enumerate(shard):
                tensor.fill_(value(i, rank, version))


def value(i: int, rank: int, version: int) -> float:
    return float(i * 8 + rank * 4 + version)


def serve(pipe: Connection) -> None:
    """What the second process runs."""
    source = Source()
    try:
        child.serve(pipe, {"make": source.make, "fill": source.fill})
    finally:
        source.engine.close()


def measure(count: int, provider: str, rounds: int) -> dict[str, Any]:
    """All figures."""
    report: dict[str, Any] = {"host": facts.host(), "tensors": count, "provider": provider}
    with Child(serve) as source, transport.Engine(providers=[provider], secret=_SECRET) as engine:
        handles = source.ask("make", count)
        begin = time.monotonic()
        source_state, target_state = states(count)
        report["layout_s"] = time.monotonic() - begin
        begin = time.monotonic()
        copies = len(plan(source_state, target_state, 0))
        report["plan_s"] = time.monotonic() - begin
        report["copies"] = copies
        into = {name: torch.zeros(_SHAPE) for name in names_of(count)}
        begin = time.monotonic()
        with Execution(
            engine, source_state, target_state, 0, remote=handles, local=into
        ) as execution:
            report["execution_s"] = time.monotonic() - begin
            execution.run()
            source.ask("fill", 1)
            report |= _repeated(execution, rounds)
        report["verified"] = _is_right(list(into.values()), 1)
    return report


def _repeated(execution: Execution, rounds: int) -> dict[str, Any]:
    submits, runs = [], []
    report = None
    for _ in range(rounds):
        begin = time.monotonic()
        run = execution.start()
        submits.append(time.monotonic() - begin)
        report = run.wait()
        runs.append(time.monotonic() - begin)
    return {
        "carried": dict(report.carried) if report else {},
        "submit_ms": statistics.median(submits) * 1e3,
        "submit_ms_worst": max(submits) * 1e3,
        "run_ms": statistics.median(runs) * 1e3,
        "rounds": rounds,
    }


def _is_right(tensors: list[torch.Tensor], version: int) -> bool:
    looked_at = [*range(min(_VERIFIED, len(tensors))), len(tensors) - 1]
    return all(np.array_equal(tensors[i], _expected(i, version)) for i in looked_at)


def _expected(i: int, version: int) -> np.ndarray[Any, Any]:
    rows = [np.full((_SHAPE[0] // _RANKS, _SHAPE[1]), value(i, r, version)) for r in range(_RANKS)]
    return np.concatenate(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--provider", default="shm", choices=("shm", "tcp", "verbs"))
    parser.add_argument("--rounds", type=int, default=21)
    given = parser.parse_args()
    print(json.dumps(measure(given.tensors, given.provider, given.rounds), indent=2))


if __name__ == "__main__":
    main()
