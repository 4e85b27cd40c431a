"""A tensor as the argument of an actor's endpoint: ours, Ray's, Monarch's, and the machine's limit.

    python -m benchmarks.mesh.tensors [--rounds N] [--size 64MiB] [--without ray] [--out FOLDER]

One caller, one actor each, on this machine. A time is the caller's: from the call to the value that
the endpoint returns, made of the first and last element. The ways, and the copies that are
the limit take turns within a round. Ours is measured with a source in private memory and in pool
memory, and for a result beside an argument. Every element is compared before the first round and
after the last. Writes mesh-tensors.json to build/reports and prints a table. Monarch runs in an
environment of its own under build/peers/, which --install makes (some 2 GB).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it asks on the first import

import torch

import transport
from benchmarks.baselines.peers.environments import Missing, make
from benchmarks.mesh.calls import MONARCH as MONARCH_NEEDS
from benchmarks.mesh.tensor_actors import RayTaker, Taker, ends
from transport.cli import facts
from transport.cli.copy_limit import CopyBuffers
from transport.cli.options import rounded
from transport.types import parse_bytes

SCHEMA = 1
BUILD = Path(__file__).resolve().parents[2] / "build"
OURS, POOL, RESULT = "ours", "ours, from pool memory", "ours, result"
RAY, MONARCH = "ray", "monarch"
ASKED = {"copy limit": 0.8, RAY: 3.0, MONARCH: 3.0}
_WAIT = 120.0  # seconds for one answer
_REST = 0.15  # seconds before each turn: what the one before left behind is freed meanwhile


class Ours:
    """Argument or result of an actor of ours."""

    def __init__(self, actor: Any, source: torch.Tensor, result: bool = False) -> None:
        self._actor, self._source, self._result = actor, source, result

    def turn(self) -> float:
        begin = time.perf_counter()
        if self._result:
            ends(self._actor.give.call_one().get(_WAIT))
        else:
            self._actor.take.call_one(self._source).get(_WAIT)
        return time.perf_counter() - begin

    def right(self, expected: torch.Tensor) -> bool:
        if self._result:
            return torch.equal(self._actor.give.call_one().get(_WAIT), expected)
        return bool(self._actor.same.call_one(self._source, expected[0].item()).get(_WAIT))


class Ray:
    """A Ray actor call with the tensor as its argument."""

    def __init__(self, source: torch.Tensor) -> None:
        import ray

        self._ray = ray
        folder = str(Path(__file__).resolve().parents[2])
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=max(16 * source.nbytes, 1 << 30),
            runtime_env={"env_vars": {"PYTHONPATH": folder}},
        )
        self._actor = ray.remote(num_cpus=0)(RayTaker).remote()
        self._source = source

    def turn(self) -> float:
        begin = time.perf_counter()
        self._ray.get(self._actor.take.remote(self._source), timeout=_WAIT)
        return time.perf_counter() - begin

    def right(self, expected: torch.Tensor) -> bool:
        value = expected[0].item()
        return bool(self._ray.get(self._actor.same.remote(self._source, value), timeout=_WAIT))

    def close(self) -> None:
        self._ray.shutdown()


class Monarch:
    """A Monarch endpoint with the tensor as its argument, asked by a process of its own."""

    def __init__(self, size: int, install: bool) -> None:
        folder = BUILD / "peers" / "monarch"
        python = make(folder, MONARCH_NEEDS) if install else folder / "bin" / "python"
        if not python.exists():
            raise Missing("not installed: --install makes its environment")
        driver = Path(__file__).with_name("drivers") / "drive_monarch_tensor.py"
        self._process = subprocess.Popen(
            [python, driver, str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._ask("ready")

    def turn(self) -> float:
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        return float(self._ask(""))

    def right(self, expected: torch.Tensor) -> bool:
        return True  # its driver has compared every element, or not begun

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(_WAIT / 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_WAIT)

    def _ask(self, word: str) -> str:
        """The next line that is for us; the library prints others."""
        for line in self._process.stdout:
            text = line.strip()
            if (word and text == word) or (not word and text.replace(".", "").isdigit()):
                return text
        raise RuntimeError(f"its driver ended with exit code {self._process.wait(_WAIT)}")


def main() -> None:
    arguments = _arguments()
    size = parse_bytes(arguments.size)
    source = torch.full((size // 4,), 1.5)
    reasons: dict[str, str] = {}
    with transport.local(1, name="bench", host={"preload": ["torch"]}) as mesh:
        actor = mesh.spawn("taker", Taker, size)
        ways: dict[str, Any] = {OURS: Ours(actor, source)}
        actor.take.call_one(source).get(_WAIT)
        from transport.mesh.tensors import here

        pooled = here().engine.empty(source.shape, torch.float32, access="read")
        pooled.copy_(source)
        ways[POOL], ways[RESULT] = Ours(actor, pooled), Ours(actor, source, result=True)
        for name, start in (
            (RAY, lambda: Ray(source)),
            (MONARCH, lambda: Monarch(size, arguments.install)),
        ):
            if name in arguments.without.split(","):
                reasons[name] = "left out"
                continue
            try:
                ways[name] = start()
            except Exception as error:
                reasons[name] = f"{type(error).__name__}: {error}"
        result = measure(ways, source, arguments.rounds)
        for way in ways.values():
            getattr(way, "close", lambda: None)()
        del ways, pooled
    result = {**head(size, arguments.rounds), **result, "reasons": reasons}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "mesh-tensors.json").write_text(json.dumps(rounded(result), indent=1) + "\n")
    print(table(result))
    if not all(result["verified"].values()):
        sys.exit(1)


def measure(ways: dict[str, Any], source: torch.Tensor, rounds: int) -> dict[str, Any]:
    size, threads = source.nbytes, len(os.sched_getaffinity(0))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    limits: dict[str, list[float]] = {}
    right = {name: way.right(source) for name, way in ways.items()}
    for way in ways.values():
        for _ in range(3):
            way.turn()
    with CopyBuffers(size) as buffers:
        for _ in range(rounds):
            for name, way in ways.items():
                time.sleep(_REST)
                seconds[name].append(way.turn())
            time.sleep(_REST)
            for kind in ("memcpy", "streaming"):
                for count in sorted({1, threads}):
                    times = buffers.times(size, kind, count, 1)
                    limits.setdefault(f"{kind}, {count} threads", []).extend(t / 1e9 for t in times)
    right = {name: right[name] and way.right(source) for name, way in ways.items()}
    return {"seconds": seconds, "limits": limits, "verified": right, **compare(seconds, limits)}


def compare(seconds: dict[str, list[float]], limits: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    copies = {name: statistics.median(taken) for name, taken in limits.items() if taken}
    best = min(copies, key=lambda name: copies[name])
    ratios = {
        way: {best: copies[best] / medians[way]}
        | {name: medians[name] / medians[way] for name in (RAY, MONARCH) if name in medians}
        for way in (OURS, POOL, RESULT)
    }
    return {"median_s": medians, "limit_s": copies, "limit": best, "ratios": ratios, "asked": ASKED}


def head(size: int, rounds: int) -> dict[str, Any]:
    versions = {"torch": version("torch"), "ray": version("ray")}
    return {
        "schema": SCHEMA,
        "host": facts.host(),
        "versions": versions,
        "bytes": size,
        "rounds": rounds,
    }


def table(result: dict[str, Any]) -> str:
    size, rows = result["bytes"], {**result["median_s"], **result["limit_s"]}
    lines = [f"{name:28} {t * 1e3:9.3f} ms {size / t / 1e9:8.2f} GB/s" for name, t in rows.items()]
    for way, ratios in result["ratios"].items():
        lines.append(f"{way}: " + ", ".join(f"{v:.2f} of {k}" for k, v in ratios.items()))
    lines += [f"{name}: {why}" for name, why in result["reasons"].items()]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--size", default="64MiB")
    parser.add_argument("--install", action="store_true", help="Monarch's environment, if missing")
    parser.add_argument("--without", default="", help="ray, monarch or both, with a comma")
    parser.add_argument("--out", type=Path, default=BUILD / "reports")
    return parser.parse_args()


if __name__ == "__main__":
    main()
