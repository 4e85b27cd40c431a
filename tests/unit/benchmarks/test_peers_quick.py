"""benchmarks.baselines.peers --quick: the whole way, with what needs no installation."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "benchmarks.baselines.peers"]


def _run(*arguments):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_quick_measures_and_verifies_what_is_here_and_says_what_is_not(tmp_path):
    assert not importlib.util.find_spec("nixl_cu12"), "NIXL belongs under build/peers"
    peers = ("--peers", "gloo,nixl")
    done = _run("--quick", *peers, "--rounds", 2, "--seconds", 0.001, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "peers.json").read_text())
    assert found["schema"] == 1
    assert found["host"]["cores"] >= 1
    expected = {"transport", "memcpy", "process_vm", "sockets"}
    if importlib.util.find_spec("torch"):
        expected.add("gloo")
    measured = [it for it in found["rows"] if it["library"] in expected]
    assert {it["library"] for it in measured} == expected
    assert all(it["verified"] and it["median_us"] > 0 for it in measured)
    assert {(it["bytes"], it["batch"]) for it in measured} == {
        (size, batch) for size in (4096, 65536) for batch in (1, 16)
    }
    assert set(found["versions"]) == expected
    assert found["absent"]["nixl"] == "nixl-cu12==1.5.1 is not installed in this environment"
    assert "- NIXL read: nixl-cu12==1.5.1 is not installed" in done.stdout
    assert "| ours write pool |" in done.stdout
    assert "not measured" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--peers", "nixl,pigeon"), "unknown: pigeon"),
        (("--sizes", "big"), "is not a size"),
        (("--sizes", "1GiB"), "at most 256 MiB"),
        (("--rounds", "0"), "at least 1"),
    ],
)
def test_wrong_options_are_refused(arguments, words):
    done = _run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
