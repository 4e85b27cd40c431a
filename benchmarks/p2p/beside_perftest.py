"""verbs beside perftest and a pyverbs loop, in the guest; see verbs_in_the_rig.sh.

Every round runs each row once on every side, and who begins changes. A figure is the median over
the rounds of the time per message; the ratio of two sides is that of their medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.p2p.verbs_rows import ROWS, Row
from transport.cli import facts
from transport.cli.options import rounded

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
OURS, THEIRS, PYVERBS = "transport", "perftest", "pyverbs"
_PERFTEST = '. tests/rig/two_hosts.sh; . tests/rig/perftest.sh; perftest_pair "$@"'


def _on(host: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", host, *command]


class Side:
    """A process on a host that answers one line of JSON with another."""

    def __init__(self, host: str, *command: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            _on(host, *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(60)

    def ask(self, **question: Any) -> dict[str, Any]:
        self.tell(**question)
        return self.answer()

    def tell(self, **question: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a side of the benchmark ended with status {self._process.wait(60)}")
        found: dict[str, Any] = json.loads(line)
        return found


def _perftest(row: Row) -> float:
    """Microseconds per message."""
    command = ["bash", "-c", _PERFTEST, "perftest", *row.perftest]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    found = json.loads(text)
    return float(found.get("us_typical") or 1e6 / found["messages_per_s"])


@dataclass
class Sides:
    """Both ends of ours and of pyverbs, which stay for all rounds."""

    far: Side
    near: Side
    pyverbs: Side

    @classmethod
    def start(cls, stack: ExitStack) -> Sides:
        ours = (sys.executable, "-m", "benchmarks.p2p.verbs_side")
        far = stack.enter_context(Side("a", *ours, "far", "10.8.0.1:7777"))
        address = far.answer()["address"]
        near = stack.enter_context(Side("b", *ours, "near", address))
        near.answer()
        loop = (sys.executable, str(Path(__file__).with_name("pyverbs_side.py")))
        path = {"PYTHONPATH": "/usr/lib/python3/dist-packages"}
        there = stack.enter_context(Side("a", *loop, "rxe_a", **path))
        here = stack.enter_context(Side("b", *loop, "rxe_b", **path))
        there_facts, here_facts = there.answer(), here.answer()
        there.ask(**here_facts)
        here.ask(**there_facts)
        return cls(far, near, here)

    def ours(self, row: Row) -> float:
        if row.kind == "pingpong":
            self.far.ask(**row.question())
        found = self.near.ask(**row.question())
        if row.kind == "pingpong":
            self.far.answer()
        if not found["verified"]:
            raise SystemExit(f"{row.name}: wrong bytes arrived, or not by RDMA")
        return float(found["us"])

    def others(self, row: Row) -> float:
        return float(self.pyverbs.ask(**row.question())["us"])


def _measure(sides: Sides, rows: list[Row], rounds: int) -> dict[str, dict[str, list[float]]]:
    times: dict[str, dict[str, list[float]]] = {row.name: {} for row in rows}
    for turn in range(-1, rounds):  # the first one warms up
        for row in rows:
            runs: dict[str, Callable[[Row], float]] = {OURS: sides.ours, THEIRS: _perftest}
            if row.pyverbs:
                runs[PYVERBS] = sides.others
            names = list(runs)
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                found = runs[name](row)
                if turn >= 0:
                    times[row.name].setdefault(name, []).append(found)
        print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
    return times


def _summary(row: Row, times: dict[str, list[float]]) -> dict[str, Any]:
    """A ratio is of rates where more is better, and of times where less is."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    more = row.unit != "us"
    ratio = medians[THEIRS] / medians[OURS] if more else medians[OURS] / medians[THEIRS]
    return {
        "row": row.name,
        "perftest": " ".join(row.perftest),
        "unit": row.unit,
        "ratio": ratio,
        "target": f"{'>=' if more else '<='} {row.target}",
        "met": ratio >= row.target if more else ratio <= row.target,
        **{name: row.figure(us) for name, us in medians.items()},
        "spread": {name: [row.figure(min(v)), row.figure(max(v))] for name, v in times.items()},
        "us_per_message": times,
    }


_COLUMNS = ("row", "unit", OURS, THEIRS, PYVERBS, "ratio", "target", "")


def _table(summaries: list[dict[str, Any]]) -> str:
    lines = [list(_COLUMNS)]
    for it in summaries:
        figures = [f"{it[side]:.4g}" if side in it else "-" for side in _COLUMNS[2:5]]
        verdict = "met" if it["met"] else "MISSED"
        ratio, target = f"{it['ratio']:.2f}", it["target"]
        lines.append([it["row"], it["unit"], *figures, ratio, target, verdict])
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths)) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - ROWS.keys():
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    rows = [ROWS[name] for name in arguments.names or ROWS]
    os.environ["TRANSPORT_SECRET"] = os.urandom(16).hex()
    with ExitStack() as stack:
        times = _measure(Sides.start(stack), rows, arguments.rounds)
    summaries = [_summary(row, times[row.name]) for row in rows]
    print(_table(summaries))
    if arguments.json:
        result = {"schema": 1, "host": facts.host(), "rounds": arguments.rounds, "rows": summaries}
        arguments.json.write_text(json.dumps(rounded(result), indent=1) + "\n")
    if not all(it["met"] for it in summaries):
        sys.exit(1)


if __name__ == "__main__":
    main()
