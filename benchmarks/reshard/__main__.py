"""Moving a sharded model into another sharding, between real processes on this machine.

    python -m benchmarks.reshard [--model demo|llama] [--from fsdp=4] [--to tp=2] [--rounds N]

Ways take turns within a round. Every byte is checked in every turn. Writes reshard.json to
build/reports and prints a table. Exit status 1 when one of our own ways failed or delivered wrong
bytes; a missed target or a rival that is not to be had here is only told.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from benchmarks.baselines.peers.environments import Missing
from benchmarks.reshard import report
from benchmarks.reshard.case import MODELS, Case
from benchmarks.reshard.rounds import FAILURES, Found, Group, failed, turn, warm
from benchmarks.reshard.ways import WAYS, python
from transport.cli import facts
from transport.cli.copy_limit import KINDS, CopyBuffers
from transport.cli.options import rounded

_SEED = 1000  # of the rounds: versions grow
BUILD = Path(__file__).resolve().parents[2] / "build"


def main() -> None:
    arguments = _arguments()
    # Ended from outside it still ends what it has started, which a rival's own processes need.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    case = Case(arguments.model, arguments.source, arguments.target)
    words = arguments.only.split(",")
    found = [Found(way) for way in WAYS if any(word in way.name for word in words)]
    groups: dict[str, Group] = {}
    try:
        for it in found:
            _start(it, case, groups, arguments)
        limits = _measure(found, groups, case, arguments.rounds)
    finally:
        for name, group in groups.items():
            group.end(kill=any(it.reason for it in found if it.way.name == name))
    result = {
        "schema": report.SCHEMA,
        "host": facts.host(),
        "rounds": arguments.rounds,
        **report.to_json(case, found, limits),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "reshard.json").write_text(json.dumps(rounded(result), indent=1) + "\n")
    print(report.table(result))
    if any(it.way.kind == "ours" and it.median is None for it in found):
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reshard", description=(__doc__ or "").partition("\n")[0]
    )
    option = parser.add_argument
    option("--model", choices=MODELS, default="demo")
    option("--from", dest="source", default="fsdp=4", help="one mesh dimension (fsdp=4)")
    option("--to", dest="target", default="tp=2", help="one mesh dimension (tp=2)")
    option("--rounds", type=int, default=5, help="turns of each way after its first (5)")
    option(
        "--only",
        default="",
        metavar="TEXT",
        help="ways whose names have one of these in them: TEXT,TEXT",
    )
    option("--quick", action="store_true", help="installs nothing")
    option("--out", type=Path, default=BUILD / "reports", help="folder (build/reports)")
    return parser.parse_args()


def _start(
    found: Found, case: Case, groups: dict[str, Group], arguments: argparse.Namespace
) -> None:
    _say(f"starting {found.way.name}")
    try:
        interpreter, more = python(found.way, BUILD / "peers", install=not arguments.quick)
        group = groups[found.way.name] = Group(found.way, case, interpreter, more)
        found.version = group.version
        turn(group, found, seed=0)
        warm(group, seed=1)
    except (Missing, *FAILURES) as error:
        failed(found, error)


def _measure(found: list[Found], groups: dict[str, Group], case: Case, rounds: int) -> list[float]:
    """The ways in turn, and what as many threads as there are targets can copy, each round."""
    targets = len(case.states["target"].ranks)
    limits: list[float] = []
    with CopyBuffers(case.nbytes) as buffers:
        for number in range(1, rounds + 1):
            _say(f"round {number} of {rounds}")
            limits.append(_limit(buffers, case.nbytes, targets))
            for it in found:
                if it.reason:
                    continue
                try:
                    turn(groups[it.way.name], it, seed=_SEED + number)
                except FAILURES as error:
                    failed(it, error)
    return limits


def _limit(buffers: CopyBuffers, size: int, threads: int) -> float:
    """GB/s of the better kind of copy, of three."""
    times = [buffers.times(size, kind, threads, 3) for kind in KINDS]
    return size / min(sorted(it)[len(it) // 2] for it in times if it)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
