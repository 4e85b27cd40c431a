"""benchmarks.reshard: its data, its cases, its verdicts; and a short run of our own ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reshard import report
from benchmarks.reshard.case import Case
from benchmarks.reshard.drivers import data
from benchmarks.reshard.rounds import Found
from benchmarks.reshard.ways import WAYS
from transport.sharding.models import TensorShape
from transport.sharding.parallelism import Parallelism
from transport.sharding.rules import Rule, sharded

ROOT = Path(__file__).parents[3]
TABLE = {"a": TensorShape((5, 6), "float32"), "b": TensorShape((7,), "int64")}


class Small(Case):
    """Without the weights of a package."""

    table = TABLE

    @property
    def states(self):
        rules = [Rule("a", tp=1)]
        spreads = zip(("source", "target"), (self.source, self.target))
        return {side: sharded(TABLE, Parallelism.parse(text), rules) for side, text in spreads}


@pytest.fixture
def case():
    return Small("small", "fsdp=4", "tp=2")


def test_a_part_is_that_of_the_whole():
    whole = data.part(3, (0, 0), (9, 7), 2, seed=5)
    assert np.array_equal(data.part(3, (2, 1), (4, 5), 2, seed=5), whole[2:6, 1:6])
    assert whole.dtype == np.uint16
    assert len(np.unique(whole)) > whole.size // 2


@pytest.mark.parametrize("other", [(4, 5), (3, 6)])
def test_tensors_and_seeds_differ_everywhere(other):
    assert (
        data.part(3, (0,), (100,), 4, 5) != data.part(other[0], (0,), (100,), 4, other[1])
    ).all()


def test_a_case_describes_both_sides(case):
    spec = case.spec
    source, target = spec["sides"]["source"], spec["sides"]["target"]
    assert [boxes.get("a") for boxes in source["boxes"]] == [
        ([0, 0], [2, 6]), ([2, 0], [2, 6]), ([4, 0], [1, 6]), None,
    ]  # fmt: skip
    assert source["shapes"][3] == {"a": [0, 6], "b": [1]}
    assert target["placements"] == {"a": 1, "b": None}
    assert case.nbytes == 5 * 6 * 4 + 2 * 7 * 8
    assert json.loads(json.dumps(spec))["tensors"]["b"] == {"shape": [7], "dtype": "int64"}


def test_targets_must_hold_slices_of_the_whole(case):
    whole = [data.part(0, (0, 0), (5, 6), 4, 9), data.part(1, (0,), (7,), 8, 9)]
    wanted = tuple(
        data.digest([np.ascontiguousarray(whole[0][:, 3 * r : 3 * r + 3]), whole[1]])
        for r in (0, 1)
    )
    assert case.digests(9) == wanted
    assert case.digests(8) != wanted


def found(kind, seconds, right=True):
    way = next(it for it in WAYS if it.kind == kind)
    return Found(way, first=1.0, seconds=seconds, right=right)


def verdicts(case, *rows):
    return {it["asked"]: it["found"] for it in report.to_json(case, rows, [2e-6])["targets_asked"]}


def test_ratios_are_medians_of_those_within_a_round(case):
    ours, rival = found("ours", [0.1, 0.3, 0.2]), found("rival", [0.8, 0.9, 0.7])
    given = verdicts(case, ours, rival, found("limit", [0.05, 0.15, 0.1]))
    assert given[report.OF_RIVALS] == pytest.approx(3.5)
    assert given[report.OF_LIMIT] == pytest.approx(0.5)
    assert verdicts(case, ours, rival)[report.OF_LIMIT] is None
    assert verdicts(case, ours, found("limit", [0.05, 0.15]))[report.OF_LIMIT] is None


def test_what_slows_a_round_slows_both(case):
    rows = [found("ours", [0.2, 2.0, 0.2, 2.0]), found("limit", [0.1, 1.0, 0.1, 0.2])]
    assert verdicts(case, *rows)[report.OF_LIMIT] == pytest.approx(0.5)
    assert "| 0.50 |" in report.table(report.to_json(case, rows, [1.0]))


def test_wrong_bytes_do_not_count_and_are_shouted(case):
    rows = [found("ours", [0.1]), found("rival", [0.01], right=False)]
    assert verdicts(case, *rows)[report.OF_RIVALS] is None
    assert "WRONG BYTES" in report.table(report.to_json(case, rows, [1.0]))


@pytest.mark.slow
@pytest.mark.parametrize("only", ["live", "streaming stores"])
def test_a_short_run(tmp_path, only):
    command = [sys.executable, "-m", "benchmarks.reshard", "--quick", "--only", only]
    words = [*command, "--from", "fsdp=2", "--to", "dp=1", "--rounds", "1", "--out", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "reshard.json").read_text())["rows"]
    assert row["verified"]
    assert row["median_s"] > 0
