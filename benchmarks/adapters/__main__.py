"""Tensors from one Ray actor to another: Ray's object store, its NIXL and GLOO, and ours.

    python -m benchmarks.adapters [--rounds N] [--only TEXT] [--quick] [--out FOLDER]

All ways are in one cluster, two actors each, and take turns within a round. A time is the driver's,
from the call of the actor that gives to the return of the one that takes: that is what a program
waits for. Every byte is compared before the first round and after the last. Processes that spin
while idle (NIXL's) are stopped while others have their turn. Writes ray.json to build/reports and
prints a table. Exit status 1 when our way failed or delivered wrong bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it asks on the first import

import ray

import transport.adapters.ray as adapter
from benchmarks.baselines.peers.environments import Missing, make
from transport.cli import facts
from transport.cli.options import rounded

SCHEMA = 1
BUILD = Path(__file__).resolve().parents[2] / "build"
CASES = {"1 MiB": (1, 1 << 20), "64 MiB": (1, 64 << 20), "1,000 x 64 KiB": (1000, 64 << 10)}
NIXL = ("nixl==1.5.1", "nixl-cu12==1.5.1")
OURS, STORE = "ours", "object store"
# Of the other's time, so many times less: case, other, asked for.
ASKED = (("64 MiB", STORE, 3.0), ("64 MiB", "NIXL", 1.3), ("1,000 x 64 KiB", "NIXL", 3.0))
_REST = 0.2  # seconds before each turn: what the one before left behind is freed meanwhile
_PATIENCE = 120.0  # seconds for one question
_OBJECTS = 16  # of the largest size that the store has room for


@dataclass
class Way:
    """One column: a transport of Ray's, and how its two actors are started."""

    name: str
    transport: str | None
    spins: bool = False
    reason: str = ""  # why it has no figures
    sides: list[Any] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    right: bool = True

    def start(self, install: bool) -> None:
        from ray_actors import Side

        more = {}
        if self.name == "NIXL":
            more = {"runtime_env": {"env_vars": {"PYTHONPATH": f"{_nixl(install)}:{_HERE}"}}}
        self.sides = [Side.options(**more).remote() for _ in range(2)]
        self.pids = ask([side.pid.remote() for side in self.sides])
        if self.name == "GLOO":
            from ray.experimental.collective import create_collective_group

            create_collective_group(self.sides, backend="torch_gloo")

    def given(self) -> Any:
        give = self.sides[0].give
        return (
            give.options(tensor_transport=self.transport).remote()
            if self.transport
            else give.remote()
        )

    def time(self) -> float:
        time.sleep(_REST)
        ask([side.pid.remote() for side in self.sides])  # both are awake again
        begun = time.perf_counter()
        ask(self.sides[1].take.remote(self.given()))
        return time.perf_counter() - begun

    def check(self, count: int, seed: int) -> None:
        if ask(self.sides[1].wrong.remote(self.given(), count, seed)):
            self.right = False
            raise RuntimeError("wrong bytes")

    def pause(self, stop: bool) -> None:
        for pid in self.pids if self.spins else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if stop else signal.SIGCONT)


_HERE = Path(__file__).parent


def _nixl(install: bool) -> str:
    """Where NIXL's wheel is, alone: it brings its own UCX."""
    if not install:
        raise Missing("not installed, and --quick installs nothing")
    make(BUILD / "peers" / "ray-nixl", NIXL, unbundled=True)
    return str(next((BUILD / "peers" / "ray-nixl").glob("lib/python*/site-packages")))


def ask(refs: Any) -> Any:
    return ray.get(refs, timeout=_PATIENCE)


def measure(ways: list[Way], rounds: int) -> None:
    """Every way has its turn in each round; the one that begins changes."""
    for seed, (case, (count, size)) in enumerate(CASES.items()):
        for way in ways:
            _attempt(way, _prepare, way, count, size, seed)
        for turn in range(rounds + 1):  # the first is not counted
            for i in range(len(ways)):
                way = ways[(turn + i) % len(ways)]
                taken = _attempt(way, way.time)
                if turn and taken is not None:
                    way.seconds.setdefault(case, []).append(taken)
        for way in ways:
            _attempt(way, way.check, count, seed)
        print(f"{case}: done", file=sys.stderr, flush=True)


def _prepare(way: Way, count: int, size: int, seed: int) -> None:
    ask(way.sides[0].make.remote(count, size, seed))
    way.check(count, seed)


def _attempt(way: Way, what: Any, *arguments: Any) -> Any:
    if way.reason:
        return None
    way.pause(False)
    try:
        return what(*arguments)
    except Exception as error:
        way.reason = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]:.120}"
        return None
    finally:
        way.pause(True)


def main() -> None:
    arguments = _arguments()
    ways = [
        Way(STORE, None),
        Way("GLOO", "GLOO"),
        Way("NIXL", "NIXL", spins=True),
        Way(OURS, "TRANSPORT"),
    ]
    ways = [way for way in ways if arguments.only in way.name]
    sys.path.insert(0, str(_HERE))
    ray.init(
        num_cpus=4,
        object_store_memory=_OBJECTS * (64 << 20),
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={
            "worker_process_setup_hook": adapter.register,
            "env_vars": {"PYTHONPATH": str(_HERE)},
        },
    )
    try:
        for way in ways:
            _attempt(way, way.start, not arguments.quick)
        measure(ways, arguments.rounds)
    finally:
        for way in ways:
            way.pause(False)
        ray.shutdown()
    result = to_json(ways, arguments.rounds)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "ray.json").write_text(json.dumps(rounded(result), indent=1) + "\n")
    print(table(result))
    if any(way.name == OURS and (way.reason or not way.right) for way in ways):
        sys.exit(1)


def to_json(ways: list[Way], rounds: int) -> dict[str, Any]:
    rows = [
        {
            "way": way.name,
            "reason": way.reason,
            "verified": way.right and not way.reason,
            "seconds": way.seconds,
            "median_s": {case: statistics.median(taken) for case, taken in way.seconds.items()},
        }
        for way in ways
    ]
    medians = {row["way"]: row["median_s"] for row in rows}
    asked = [
        {
            "case": case,
            "of": other,
            "asked": wanted,
            "found": _ratio(medians.get(other, {}).get(case), medians.get(OURS, {}).get(case)),
        }
        for case, other, wanted in ASKED
    ]
    return {
        "schema": SCHEMA,
        "host": facts.host(),
        "versions": {"ray": ray.__version__, "torch": version("torch"), "nixl": NIXL[0]},
        "rounds": rounds,
        "cases": {case: {"tensors": n, "bytes": size} for case, (n, size) in CASES.items()},
        "rows": rows,
        "targets": asked,
    }


def _ratio(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs and ours else None


def table(result: dict[str, Any]) -> str:
    """Markdown, for a terminal and for docs/status.md."""
    cases = list(result["cases"])
    lines = [f"| way | {' | '.join(f'{case}, ms' for case in cases)} |"]
    lines.append("| --- |" + " --- |" * len(cases))
    for row in result["rows"]:
        cells = [_cell(row["median_s"].get(case)) for case in cases]
        lines.append(
            f"| {row['way']} | {' | '.join(cells)} |" + f" {row['reason']}" * bool(row["reason"])
        )
    for target in result["targets"]:
        found = "not measured" if target["found"] is None else f"{target['found']:.1f}"
        words = f"{target['case']}, {target['of']}'s time / ours: {found}"
        lines.append(f"{words} (asked for: >= {target['asked']})")
    return "\n".join(lines)


def _cell(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.adapters", description=(__doc__ or "").partition("\n")[0]
    )
    option = parser.add_argument
    option("--rounds", type=int, default=7, help="turns of each way after its first (7)")
    option("--only", default="", metavar="TEXT", help="ways whose names have this in them")
    option("--quick", action="store_true", help="installs nothing")
    option("--out", type=Path, default=BUILD / "reports", help="folder (build/reports)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
