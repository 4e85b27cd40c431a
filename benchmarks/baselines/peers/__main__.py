"""This library beside others, turn by turn in one run, on this machine.

    python -m benchmarks.baselines.peers [--quick] [--peers NAMES] [--sizes SIZES] [--rounds N]

Writes peers.json and peers.svg to build/reports and prints the tables. Exit status 1 when one of
our own ways failed or delivered wrong bytes; a missed target or an absent library is only told.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.baselines.peers import environments, report, rounds
from benchmarks.baselines.peers.environments import Missing
from benchmarks.baselines.peers.rounds import Case, Contender
from benchmarks.baselines.peers.ways import LIBRARIES, WAYS, Way
from transport.cli import facts
from transport.cli.options import rounded
from transport.cli.sizes import parse_sizes
from transport.errors import InvalidUse
from transport.types import format_bytes

BUILD = Path(__file__).resolve().parents[3] / "build"
_SIZES = "4KiB,64KiB,1MiB,16MiB,256MiB"
_QUICK_SIZES = "4KiB,64KiB"
_QUICK_BATCH = 16
_ALWAYS = ("transport", "memcpy", "process_vm", "sockets")
_PLOT = ("matplotlib==3.10.8",)
_DRAW = 120.0  # seconds


def main() -> None:
    arguments = _arguments()
    names = [*_ALWAYS, *arguments.peers]
    ways = [way for way in WAYS if way.library in names]
    cases = _cases(arguments)
    contenders: list[Contender] = []
    with rounds.closing(contenders):
        for way in ways:
            _say(f"starting {way.name}")
            contenders.append(_start(way, cases, arguments))
        rows = report.Rows(_measure(contenders, cases, arguments))
    result = report.to_json(rows, _facts(contenders, arguments))
    _write(result, arguments)
    print(report.tables(rows))
    if any(row.way.kind == "ours" and not row.counts for row in rows):
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    others = [name for name in LIBRARIES if name not in _ALWAYS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.baselines.peers", description=(__doc__ or "").partition("\n")[0]
    )
    option = parser.add_argument
    option("--quick", action="store_true", help="short, and installs nothing: ours, bare copies, "
           "and of --peers what this environment has")  # fmt: skip
    option("--peers", type=_listed(others), metavar="NAMES", help=", ".join(others))
    option("--sizes", type=_sizes, metavar="SIZES", help=f"of a block: {_SIZES}; or 4KiB..1MiB")
    option("--rounds", type=_positive, default=5, help="turns of each way (5)")
    option("--seconds", type=float, default=0.1, help="that a turn takes, about (0.1)")
    option("--out", type=Path, default=BUILD / "reports", help="folder (build/reports)")
    given = parser.parse_args()
    if given.peers is None:
        given.peers = ["gloo"] if given.quick else others
    if given.sizes is None:
        given.sizes = _sizes(_QUICK_SIZES if given.quick else _SIZES)
    return given


def _listed(known: list[str]) -> Any:
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
        return names

    return parse


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = parse_sizes(text)
    except InvalidUse as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if max(sizes) > rounds.MOST_BYTES:
        raise argparse.ArgumentTypeError(f"at most {format_bytes(rounds.MOST_BYTES)}")
    return sizes


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _cases(arguments: argparse.Namespace) -> list[Case]:
    many = _QUICK_BATCH if arguments.quick else report.MANY
    pairs = [(size, 1) for size in arguments.sizes]
    pairs += [(size, many) for size in arguments.sizes]
    pairs += [] if arguments.quick else [report.BLOCKS, report.SCATTERED]
    cases = [Case.cut(size, batch) for size, batch in pairs]
    # Where a batch was cut down to one block it is the row of that block, again.
    return [case for case in cases if case.batch == case.asked or case.batch > 1]


def _start(way: Way, cases: list[Case], arguments: argparse.Namespace) -> Contender:
    library, folder = LIBRARIES[way.library], BUILD / "peers"
    options = dict(way.options)
    try:
        command = environments.command(library, folder, install=not arguments.quick)
        if library.name == "ucx":
            options["library"] = str(environments.ucx_library(folder / library.name))
    except Missing as reason:
        return Contender(way, reason=str(reason))
    most = max(case.bytes for case in cases)
    return rounds.start(way, command, most, arguments.out / "peers-logs", options)


def _measure(
    contenders: list[Contender], cases: list[Case], arguments: argparse.Namespace
) -> list[report.Row]:
    rows: list[report.Row] = []
    for number, case in enumerate(cases, 1):
        _say(f"case {number} of {len(cases)}: {case.batch} x {format_bytes(case.size)}")
        found = rounds.measure(contenders, case, arguments.rounds, arguments.seconds, number)
        rows += [report.row(it) for it in found]
    return rows


def _facts(contenders: list[Contender], arguments: argparse.Namespace) -> dict[str, Any]:
    versions = {it.way.library: it.version for it in contenders if it.version}
    absent = {it.way.library: it.reason for it in contenders if not it.version}
    return {
        "host": facts.host(),
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "most_bytes": rounds.MOST_BYTES,
        "versions": versions,
        "absent": absent,
    }


def _write(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    target = arguments.out / "peers.json"
    target.write_text(json.dumps(rounded(result), indent=1) + "\n")
    _say(f"wrote {target}")
    if arguments.quick:
        return
    try:
        python = environments.make(BUILD / "peers" / "plot", _PLOT)
    except Missing as reason:
        _say(f"no plot: {reason}")
        return
    script = Path(__file__).with_name("plot.py")
    words = [str(python), str(script), str(target), str(target.with_suffix(".svg"))]
    drawn = subprocess.run(words, capture_output=True, text=True, timeout=_DRAW)
    _say(f"wrote {target.with_suffix('.svg')}" if drawn.returncode == 0 else drawn.stderr)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
