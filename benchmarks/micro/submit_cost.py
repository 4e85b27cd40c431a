"""What our own code costs per descriptor of a batch of 10,000 that touch nowhere, as JSON.

python -m benchmarks.micro.submit_cost [--rounds N]          (or: make submit-cost)

Nanoseconds are medians of CLOCK_MONOTONIC over the rounds, of a program that is built here as the
shipped module is (native/bench/bench_submit.c); its device is the double of libibverbs, whose post
and poll are replaced by ones that do next to nothing. Instructions are what callgrind counts in the
same stages, in all and by source file.

- make: check and copy (tn_prepare)
- next: hand out pieces (tn_transfer_next)
- whole: from tn_submit to the end of tn_transfer_wait: both, work requests and completions
- prepared: the whole without `make`
- small: a prepared write of 8 bytes, run and waited for, whose completion is found at the 21st look
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_BUILD = _ROOT / "build/native/bench"
_PROGRAM = _BUILD / "bench/bench_submit"
_ENVIRONMENT = {**os.environ, "TN_FAKES": str(_BUILD / "fakes")}
_CALLGRIND_ROUNDS = 4
_NAME = re.compile(r"^(fl|fi|fe|fn|cfn|cfi|cfl)=\((\d+)\)(?: (.*))?")


def measure(rounds: int) -> dict[str, Any]:
    """All stages; builds the program first."""
    subprocess.run(["make", "-C", str(_ROOT / "native"), "bench"], check=True, capture_output=True)
    report: dict[str, Any] = json.loads(_run([str(_PROGRAM), str(rounds)]))
    for stage, found in report["per_descriptor"].items():
        counts = _instructions(stage)
        runs = report["descriptors"] * (_CALLGRIND_ROUNDS + 1)  # and one to warm up
        found["instructions"] = round(sum(counts.values()) / runs, 1)
        found["by_file"] = {
            name: round(count / runs, 1)
            for name, count in counts.most_common()
            if count / runs >= 1
        }
    return report


def _run(command: list[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=_ENVIRONMENT)
    return done.stdout


def _instructions(stage: str) -> Counter[str]:
    """By the name of the source file, the stage's own and all that it calls."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        options = ["--collect-atstart=no", f"--toggle-collect=stage_{stage}"]
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options]
        _run([*valgrind, str(_PROGRAM), str(_CALLGRIND_ROUNDS), stage])
        return _self_costs(out.read_text().splitlines())


def _self_costs(lines: list[str]) -> Counter[str]:
    """Of callgrind's format (valgrind manual, "Callgrind Format Specification")."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    file, called = "", False
    for line in lines:
        if match := _NAME.match(line):
            kind, number, name = match.groups()
            if kind not in ("fn", "cfn"):
                if name is not None:
                    names[number] = Path(name).name
                file = names[number] if kind in ("fl", "fi", "fe") else file
        elif line.startswith("calls="):
            called = True  # the next line is the callee's cost
        elif line[:1] in "+-*0123456789" and len(words := line.split()) == 2:
            counts[file] += 0 if called else int(words[1])
            called = False
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=101)
    print(json.dumps(measure(parser.parse_args().rounds), indent=2))


if __name__ == "__main__":
    main()
