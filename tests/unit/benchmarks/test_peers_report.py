"""benchmarks.baselines.peers: medians, quartiles, ratios and targets, from times that are given."""

from __future__ import annotations

import json

import pytest

from benchmarks.baselines.peers import report
from benchmarks.baselines.peers.report import KIB, MIB, Row, Rows
from benchmarks.baselines.peers.rounds import Case, Found
from benchmarks.baselines.peers.ways import WAYS

WAY = {way.name: way for way in WAYS}


def row(way, size, us, batch=1, **facts):
    rate = size * batch / us / 1e3
    values = {
        "verified": True,
        "median_us": us,
        "gb_per_s": rate,
        "quartiles_us": (us, us),
        **facts,
    }
    return Row(WAY[way], size, batch, batch, (us,), 1, **{**values, **facts})


def target(rows, words):
    return next(it for it in report.targets(Rows(rows)) if words in it.name)


class TestRow:
    def test_median_and_quartiles_are_of_all_rounds(self):
        rounds = [[1000, 2000], [3000], [4000, 5000]]
        found = report.row(Found(WAYS[0], Case.cut(4096, 2), rounds, verified=True))
        assert (found.median_us, found.quartiles_us) == (3.0, (2.0, 4.0))
        assert (found.gb_per_s, found.submissions) == (8192 / 3000, 5)
        assert found.rounds == (1.5, 3.0, 4.5)
        assert found.counts

    def test_one_submission_is_its_own_quartiles(self):
        assert report.quartiles([7]) == (7, 7)

    def test_a_failure_after_some_rounds_leaves_no_figure(self):
        found = Found(WAYS[0], Case.cut(1, 1), [[5]], reason="it ended")
        assert report.row(found).median_us is None

    def test_a_batch_is_cut_to_the_memory(self):
        assert Case.cut(MIB, 1024) == Case(MIB, 256, 1024)
        assert Case.cut(256 * MIB, 1024).batch == 1
        assert Case.cut(4 * KIB, 1024).batch == 1024


class TestTargets:
    @pytest.mark.parametrize(("us", "verdict"), [(0.3, "met"), (0.5, "MISSED")])
    def test_small_writes_against_nixl(self, us, verdict):
        rows = [row("ours write pool", 4 * KIB, us), row("NIXL write", 4 * KIB, 2.0)]
        found = target(rows, "of NIXL's prepared")
        assert (found.found, found.verdict) == (pytest.approx(us / 2.0), verdict)

    def test_first_quartiles_are_told_and_decide_nothing(self):
        rows = [
            row("ours write tcp", MIB, 10.0, quartiles_us=(5.0, 20.0)),
            row("gloo send", MIB, 15.0, quartiles_us=(15.0, 15.0)),
        ]
        found = target(rows, "tcp, batch 1,")
        assert (found.found, found.quiet, found.verdict) == (1.5, 3.0, "MISSED")
        rows = [row("ours write pool", 4 * KIB, 0.3), row("NIXL write", 4 * KIB, 3.0)]
        assert target(rows, "of NIXL's prepared").quiet == pytest.approx(0.1)

    def test_what_is_missing_is_named(self):
        found = target([row("ours write pool", 4 * KIB, 1.0)], "of NIXL's prepared")
        assert (found.found, found.met, found.verdict) == (None, None, "not measured")
        assert found.behind == "no figure of NIXL write"

    def test_wrong_bytes_count_for_nothing(self):
        wrong = row("NIXL write", 4 * KIB, 9.0, verified=False)
        found = target([row("ours write pool", 4 * KIB, 1.0), wrong], "of NIXL's prepared")
        assert found.verdict == "not measured"

    def test_blocks_are_those_of_one_batch(self):
        size, batch = report.BLOCKS
        rows = [row("ours write pool", size, 300.0, batch), row("UCX put own", size, 100.0, batch)]
        assert target(rows, "of UCX own").found == pytest.approx(3.0)
        assert target(rows, "of UCX own").verdict == "MISSED"

    def test_the_faster_of_nixls_ways_is_the_measure(self):
        size, batch = report.SCATTERED
        rows = [
            row("ours write pool", size, 10.0, batch),
            row("NIXL write", size, 30.0, batch),
            row("NIXL read", size, 15.0, batch),
        ]
        found = target(rows, "scattered into pool")
        assert (found.found, found.verdict) == (1.5, "MISSED")
        assert target(rows, "scattered into private").verdict == "not measured"

    def test_the_best_peer_is_no_bare_copy_and_may_be_in_c(self):
        size = 256 * MIB
        rows = [
            row("ours read pool", size, 10.0),
            row("memcpy read", size, 1.0),
            row("gloo send", size, 40.0),
            row("UCX put private", size, 16.0),
        ]
        found = target(rows, "256 MiB pool to private")
        assert (found.found, found.met) == (1.6, True)
        assert "UCX put private" in found.behind
        assert found.verdict == "met, but without nixl, ucx, mooncake, ray, monarch"

    def test_it_is_met_when_all_that_it_is_about_have_a_figure(self):
        rows = [row("ours write tcp", MIB, 10.0), row("gloo send", MIB, 100.0)]
        assert target(rows, "tcp, batch 1,").verdict == "met"

    def test_private_memory_is_compared_where_it_is_worst_with_peers_in_python(self):
        rows = [
            row("ours write private", 4 * KIB, 2.0),
            row("ours write private", MIB, 10.0),
            row("UCX put private", 4 * KIB, 0.1),
            row("NIXL write", 4 * KIB, 4.0),
            row("NIXL write", MIB, 9.0),
            row("NIXL read", MIB, 1.0),  # another operation
        ]
        found = target(rows, "private, write, batch 1,")
        assert found.ratios == {"4 KiB": 2.0, "1 MiB": 0.9}
        assert (found.found, found.verdict) == (0.9, "MISSED")

    def test_tcp_needs_twice_gloo_at_every_size(self):
        rows = [
            row("ours write tcp", 4 * KIB, 10.0),
            row("gloo send", 4 * KIB, 100.0),
            row("ours write tcp", 16 * MIB, 80.0),
            row("gloo send", 16 * MIB, 100.0),
        ]
        found = target(rows, "tcp, batch 1,")
        assert (found.found, found.verdict) == (1.25, "MISSED")


class TestOutput:
    def test_times_have_the_unit_that_suits_them(self):
        times = (0.0724, 999.4, 999.6, 115400.0, 1412000.0)
        texts = ["0.0724 us", "999 us", "1 ms", "115 ms", "1.41 s"]
        assert [report.duration(us) for us in times] == texts

    ROWS = Rows(
        [
            row("ours write pool", 4 * KIB, 2.0),
            row("ours read pool", 4 * KIB, 1.0),
            row("NIXL write", 4 * KIB, 4.0),
            Row(WAY["monarch write"], 4 * KIB, 1, 1, reason="it needs a moon"),
        ]
    )

    def test_json_has_the_share_of_ours_for_the_same_operation(self):
        found = json.loads(json.dumps(report.to_json(self.ROWS, {"host": {}})))
        assert found["schema"] == 1
        by_way = {it["way"]: it for it in found["rows"]}
        assert by_way["NIXL write"]["rate_of_ours"] == {"ours write pool": 0.5}
        assert by_way["monarch write"]["reason"] == "it needs a moon"
        assert by_way["monarch write"]["median_us"] is None
        assert {it["verdict"] for it in found["targets"]} == {"MISSED", "not measured"}

    def test_tables_name_what_was_not_measured_and_every_target(self):
        text = report.tables(self.ROWS)
        assert "| NIXL write | 1.02 (4 us) |" in text
        assert "| monarch write | - |" in text
        assert "- monarch write: it needs a moon" in text
        assert text.count("not measured |") + text.count("MISSED |") == len(
            report.targets(self.ROWS)
        )
