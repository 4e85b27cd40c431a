from __future__ import annotations

import json

import pytest

from transport.cli.bench_report import (
    LIMIT_BYTES,
    Label,
    Limit,
    Report,
    limits_table,
    percentile,
    rows_table,
    summarise,
)
from transport.cli.options import emit, rounded

ROW_KEYS = [
    "provider", "op", "memory", "bytes", "batch", "window", "iterations", "gb_per_s_avg",
    "gb_per_s_peak", "messages_per_s", "p50_us", "p99_us", "verified",
]  # fmt: skip

LIMITS = (
    Limit(4096, 1, "memcpy", 40.0),
    Limit(4096, 2, "memcpy", 50.0),
    Limit(LIMIT_BYTES, 1, "memcpy", 10.0),
    Limit(LIMIT_BYTES, 1, "streaming", 16.0),
    Limit(LIMIT_BYTES, 2, "memcpy", 12.0),
    Limit(LIMIT_BYTES, 2, "streaming", 20.0),
)


def make_report(**changes):
    label = Label("shm", "read", "pool", 4096, 2, "mapped")
    row = summarise(label, [1000, 2000, 3000, 2000], verified=True, limit_bytes=4096, **changes)
    return Report({"machine": "m"}, LIMITS, (row,))


def test_a_row_counts_all_messages_of_a_submission():
    row = make_report().rows[0]
    assert row.iterations == 4
    assert row.gb_per_s_avg == pytest.approx(4096 * 2 * 4 / 8000)
    assert row.gb_per_s_peak == pytest.approx(4096 * 2 / 1000)
    assert row.messages_per_s == pytest.approx(2 * 4 / 8000e-9)
    assert (row.p50_us, row.p99_us) == (2.0, pytest.approx(2.97))


def test_rates_of_overlapping_submissions_are_over_the_time_of_all():
    label = Label("verbs", "write", "pool", 1000, 4, "rc", 8)
    row = summarise(label, [500, 900, 1000, 600], 1200, verified=True)
    assert row.window == 8
    assert row.gb_per_s_avg == row.gb_per_s_peak == pytest.approx(1000 * 4 * 4 / 1200)
    assert row.messages_per_s == pytest.approx(4 * 4 / 1200e-9)
    assert row.p50_us == pytest.approx(0.75)


def test_the_json_has_the_promised_shape():
    found = make_report().to_json()
    assert list(found) == [
        "schema",
        "host",
        "limit_gb_per_s",
        "limit_all_gb_per_s",
        "limits",
        "rows",
    ]
    assert found["schema"] == 1
    assert (found["limit_gb_per_s"], found["limit_all_gb_per_s"]) == (16.0, 20.0)
    assert list(found["limits"][0]) == ["bytes", "threads", "kind", "gb_per_s"]
    assert list(found["rows"][0]) == ROW_KEYS


def test_all_threads_are_never_said_to_be_slower_than_one():
    limits = (Limit(LIMIT_BYTES, 1, "memcpy", 10.0), Limit(LIMIT_BYTES, 2, "memcpy", 9.0))
    assert Report({}, limits).best(LIMIT_BYTES, one_thread=False) == 10.0


def test_percentiles_lie_between_ranks():
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([1, 2], 0.5) == 1.5
    assert percentile([7], 0.99) == 7
    assert percentile(range(101), 0.99) == 99


def test_tables_are_plain_columns():
    lines = rows_table(make_report()).splitlines()
    assert len(lines) == 2
    assert lines[0].split()[:3] == ["#bytes", "#batch", "#window"]
    assert lines[1].split()[-5:] == ["shm", "mapped", "read", "pool", "verified"]
    assert len(limits_table(make_report()).splitlines()) == 1 + 4


def test_wrong_bytes_are_shouted():
    row = summarise(Label("tcp", "read", "pool", 1, 1), [1], verified=False)
    assert "WRONG" in rows_table(Report({}, (), (row,)))


def test_json_goes_to_a_file_or_takes_the_place_of_the_table(tmp_path, capsys):
    report, file = make_report(), tmp_path / "result.json"
    emit(report, file, "the table")
    assert capsys.readouterr().out == "the table\n"
    assert json.loads(file.read_text())["rows"][0]["provider"] == "shm"
    emit(report, file.with_name("-").relative_to(tmp_path), "the table")
    assert json.loads(capsys.readouterr().out)["schema"] == 1


def test_figures_are_rounded_and_nothing_else_is():
    value = {"a": 1.23456789, "b": [123456789, True, None, "x"], "c": 0.0}
    assert rounded(value) == {"a": 1.2346, "b": [123456789, True, None, "x"], "c": 0.0}
