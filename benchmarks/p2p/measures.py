"""Every figure that docs/status.md quotes about this machine, in one run.

    python -m benchmarks.p2p.measures [--rounds N] [--json FILE] [NAME...]

A ratio compares medians of runs that took turns. Exit status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.p2p import pairs
from transport.cli import facts
from transport.cli.options import rounded

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
SIZE = 64 * MIB


@dataclass(frozen=True)
class Measure:
    """One line: what was found, what was asked, and the figures behind it."""

    name: str
    found: float
    unit: str
    target: str
    met: bool
    details: dict[str, Any] = field(default_factory=dict)


def _ratio(name: str, times: pairs.Times, size: int, least: float = 0.9) -> Measure:
    """Our rate over the better of the others'."""
    rates = {key: size / statistics.median(values) for key, values in times.items()}
    best = max(rate for key, rate in rates.items() if key != pairs.OURS)
    ratio = rates[pairs.OURS] / best
    details = {
        "bytes": size,
        "rounds": len(times[pairs.OURS]),
        "gb_per_s": rates,
        "best_gb_per_s": {key: size / min(values) for key, values in times.items()},
    }
    return Measure(name, ratio, "ratio", f">= {least}", ratio >= least, details)


def shm_pool(rounds: int) -> Measure:
    return _ratio("shm, pool memory, 64 MiB read", pairs.pool_read(SIZE, rounds), SIZE)


def shm_private(rounds: int) -> Measure:
    return _ratio("shm, private memory, 64 MiB read", pairs.private_read(SIZE, rounds), SIZE)


def tcp_read(rounds: int) -> Measure:
    return _ratio("tcp on loopback, 64 MiB read", pairs.tcp("read", SIZE, rounds), SIZE)


def tcp_write(rounds: int) -> Measure:
    return _ratio("tcp on loopback, 64 MiB write", pairs.tcp("write", SIZE, rounds), SIZE)


def _script(module: str, *arguments: str) -> dict[str, Any]:
    """A micro study in an interpreter of its own, which has imported nothing else."""
    command = [sys.executable, "-m", f"benchmarks.micro.{module}", "--json", *arguments]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(text)
    return found


def import_time(rounds: int) -> Measure:
    found = _script("import_time", "--rounds", str(rounds))
    met = found["extra_ms"] < 60 and not {"torch", "numpy"} & set(found["dragged_in"])
    target = "< 60, without torch and numpy"
    return Measure("import transport", found["extra_ms"], "ms", target, met, found)


def engine_open(rounds: int) -> Measure:
    found = _script("engine_open", "--rounds", str(rounds))
    slowest = max(found["both_ms"], found["first_ms"])
    return Measure("engine open and close", found["both_ms"], "ms", "< 50", slowest < 50, found)


def idle_cpu(_: int) -> Measure:
    found = _script("idle_cpu", "--peers", "8")
    share = max(found["here"], found["there"] / found["peers"]) * 100
    return Measure("idle engine with 8 peers", share, "% of a core", "< 0.5", share < 0.5, found)


MEASURES: dict[str, Callable[[int], Measure]] = {
    "shm-pool": shm_pool,
    "shm-private": shm_private,
    "tcp-read": tcp_read,
    "tcp-write": tcp_write,
    "import-time": import_time,
    "engine-open": engine_open,
    "idle-cpu": idle_cpu,
}


def _line(measure: Measure) -> str:
    rates = measure.details.get("gb_per_s", {})
    behind = ", ".join(f"{name} {rate:.2f} GB/s" for name, rate in rates.items())
    if "load_ms" in measure.details:
        times = {name: measure.details[f"{name}_ms"] for name in ("load", "first")}
        behind = ", ".join(f"{name} {value:.0f} ms" for name, value in times.items())
    verdict = "met" if measure.met else "MISSED"
    figure = f"{measure.found:.3g} {measure.unit}"
    return f"{measure.name:<34} {figure:<20} {measure.target:<30} {verdict:<7} {behind}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--rounds", type=int, default=21, help="turns of each side (at least 7)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - MEASURES.keys()
    if unknown or arguments.rounds < 7:
        parser.error(f"unknown: {', '.join(sorted(unknown))}" if unknown else "--rounds >= 7")
    found: list[Measure] = []
    for name in arguments.names or MEASURES:
        found.append(MEASURES[name](arguments.rounds))
        print(_line(found[-1]), flush=True)
    if arguments.json:
        result = {"schema": 1, "host": facts.host(), "measures": [asdict(it) for it in found]}
        arguments.json.write_text(json.dumps(rounded(result), indent=1) + "\n")
    if not all(measure.met for measure in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
