"""An endpoint call without tensors, between two processes: ours, Ray's, Monarch's.

    python -m benchmarks.mesh.calls [--rounds N] [--calls N] [--only NAMES] [--install] [--out FILE]

Each library has one actor in a process of its own and calls it, one call after the other, from a
thread that waits for the answer. They take turns: every round asks each for its calls. Whoever has
no turn waits in a read of its standard input. A figure is a percentile of all times of all rounds,
on the caller's monotonic clock; a ratio is that of medians. `--install` makes an environment for
Monarch under build/peers/ (some 2 GB). Writes build/reports/mesh-calls.json and prints a table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.baselines.peers.environments import Missing, make
from transport.cli import facts
from transport.cli.bench_report import percentile

SCHEMA = 1
ROOT = Path(__file__).resolve().parents[2]
DRIVERS = Path(__file__).resolve().parent / "drivers"
MONARCH = ("torchmonarch==0.7.0", "torch==2.13.0", "numpy")
WAYS = {
    "ours, sync": ("drive_transport.py", "sync"),
    "ours, async": ("drive_transport.py", "async"),
    "ray": ("drive_ray.py",),
    "monarch": ("drive_monarch.py",),
}


class Driver:
    """A library's program, and the times that it told."""

    def __init__(self, name: str, python: str) -> None:
        script, *arguments = WAYS[name]
        self.name = name
        self.times: list[int] = []
        self.medians: list[float] = []
        self._process = subprocess.Popen(
            [python, str(DRIVERS / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if name != "ours, sync" else None,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)} if python == sys.executable else None,
        )
        self.version = self._expect("ready")

    def _expect(self, word: str) -> str:
        """The rest of the line that begins with a word; libraries print others."""
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise Missing(f"its program ended ({self._process.wait()})")

    def turn(self, calls: int) -> None:
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        times = json.loads("[" + self._expect("["))
        self.times += times
        self.medians.append(statistics.median(times) / 1e3)

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def figures(self) -> dict[str, object]:
        times = sorted(self.times)
        points = {f"p{q}_us": percentile(times, q / 100) / 1e3 for q in (50, 90, 99)}
        return {"version": self.version, "calls": len(times), **points, "medians_us": self.medians}


def start(names: list[str], install: bool) -> tuple[dict[str, Driver], dict[str, str]]:
    """The drivers, and why others are not there."""
    drivers, missing = {}, {}
    for name in names:
        try:
            python = sys.executable
            if name == "monarch":
                if not install:
                    raise Missing("not asked for: --install")
                python = str(make(ROOT / "build" / "peers" / "monarch", MONARCH))
            drivers[name] = Driver(name, python)
        except Missing as reason:
            missing[name] = str(reason)
    return drivers, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--only", default=",".join(n for n in WAYS).replace(", ", "-"))
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "build/reports/mesh-calls.json")
    options = parser.parse_args()
    wanted = options.only.split(",")
    names = [name for name in WAYS if name.replace(", ", "-") in wanted]
    drivers, missing = start(names, options.install)
    with contextlib.ExitStack() as stack:
        for driver in drivers.values():
            stack.callback(driver.close)
        for _ in range(options.rounds):
            for driver in drivers.values():
                driver.turn(options.calls)
    report(drivers, missing, options.out)


def report(drivers: dict[str, Driver], missing: dict[str, str], out: Path) -> None:
    figures = {name: driver.figures() for name, driver in drivers.items()}
    ours = figures.get("ours, sync", {}).get("p50_us")
    for each in figures.values():
        each["times_ours"] = each["p50_us"] / ours if ours else None
    whole = {"schema": SCHEMA, "host": facts.host(), "figures": figures, "missing": missing}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(whole, indent=1))
    print(f"{'':14}{'p50 us':>10}{'p90 us':>10}{'p99 us':>10}{'x ours':>8}")
    for name, each in figures.items():
        row = "".join(f"{each[f'p{q}_us']:10.0f}" for q in (50, 90, 99))
        ratio = f"{each['times_ours']:8.1f}" if each["times_ours"] else ""
        print(f"{name:14}{row}{ratio}")
    for name, reason in missing.items():
        print(f"{name:14}{reason}")


if __name__ == "__main__":
    main()
