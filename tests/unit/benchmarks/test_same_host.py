"""benchmarks.p2p.same_host: its verdicts, from times that are given."""

from __future__ import annotations

import pytest

from benchmarks.p2p import pairs
from benchmarks.p2p.same_host import Row, _judge

TIMES = {pairs.OURS: [2000, 20000, 2000], "memcpy": [3000, 9000, 3000], "streaming": [1800] * 3}


def test_a_ratio_is_the_median_of_those_within_a_round():
    found = _judge(Row("pool", 1000, least=0.95), {**TIMES, "streaming": [1000, 10000, 1900]})
    assert found.found == pytest.approx(0.5)
    assert not found.met
    assert found.details["us"] == {pairs.OURS: 2.0, "memcpy": 3.0, "streaming": 1.9}


def test_it_is_of_the_better_way():
    assert _judge(Row("pool", 1000, least=0.85), TIMES).found == pytest.approx(0.9)


def test_beyond_is_of_medians():
    found = _judge(Row("private", 1000, beyond_us=0.6), TIMES)
    assert found.found == pytest.approx(0.2)
    assert found.met
