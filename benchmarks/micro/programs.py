"""The programs of native/bench: built as the shipped module is, run, their instructions counted."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BUILD = ROOT / "build/native/bench"
_ENVIRONMENT = {**os.environ, "TN_FAKES": str(_BUILD / "fakes")}
_NAME = re.compile(r"^(fl|fi|fe|fn|cfn|cfi|cfl)=\((\d+)\)(?: (.*))?")


def build() -> None:
    """All of them, and the doubles that they use."""
    subprocess.run(["make", "-C", str(ROOT / "native"), "bench"], check=True, capture_output=True)


def run(program: str, *arguments: str, under: tuple[str, ...] = ()) -> str:
    """What the program prints; `under` is a tool that runs it, with the tool's options."""
    command = [*under, str(_BUILD / "bench" / program), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=_ENVIRONMENT)
    return done.stdout


def instructions(program: str, *arguments: str, collect_in: str | None = None) -> Counter[str]:
    """Instructions by the name of the source file, as callgrind counts them: of all threads, or of
    the function `collect_in` and what it calls.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        options = [f"--callgrind-out-file={out}"]
        if collect_in is not None:
            options += ["--collect-atstart=no", f"--toggle-collect={collect_in}"]
        run(program, *arguments, under=("valgrind", "--tool=callgrind", *options))
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
