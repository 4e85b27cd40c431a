"""benchmarks.baselines.peers: the drivers' protocol, and what becomes of drivers that break it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.baselines.peers import conductor, environments, report, rounds
from benchmarks.baselines.peers.conductor import DRIVERS, Command, Pair
from benchmarks.baselines.peers.drivers import protocol
from benchmarks.baselines.peers.rounds import Case
from benchmarks.baselines.peers.ways import LIBRARIES, WAYS, Library, Way

FAULTY = Path(__file__).parents[2] / "support" / "faulty_driver.py"
CASE = Case.cut(512, 8)


def _contender(fault, tmp_path, library="ray"):  # of those that have one process
    way = Way("faulty", library, "read", options={"fault": fault})
    command = Command(sys.executable, FAULTY)
    return rounds.start(way, command, 1 << 16, tmp_path, way.options)


def _measured(fault, tmp_path):
    contender = _contender(fault, tmp_path)
    pids = [process.pid for process in contender.pair.processes] if contender.pair else []
    with rounds.closing([contender]):
        [found] = rounds.measure([contender], CASE, rounds=2, seconds=0.001, seed=3)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    return report.row(found)


class TestDrivers:
    @pytest.mark.parametrize(
        ("name", "op"),
        [
            ("memcpy", "write"),
            ("memcpy", "read"),
            ("process_vm", "write"),
            ("process_vm", "read"),
            ("sockets", "write"),
        ],
    )
    def test_a_batch_arrives_block_by_block_where_it_belongs(self, name, op, tmp_path):
        command = Command(sys.executable, DRIVERS / LIBRARIES[name].driver)
        with Pair(command, tmp_path / "log", alone=False, spins=True) as pair:
            with pair.turn():
                assert pair.open(bytes=1 << 16, op=op, streams=3)
                pair.both("prepare", size=1000, batch=40)
                source, sink = (pair.initiator, pair.target)[:: 1 if op == "write" else -1]
                source.ask("fill", seed=5)
                assert sink.ask("verify", seed=5) == {"right": False}
                assert len(pair.both("run", count=4)[0]["ns"]) == 4
                assert sink.ask("verify", seed=5) == {"right": True}
                assert sink.ask("verify", seed=6) == {"right": False}
            with pair.turn():  # once stopped, it goes on
                assert pair.both("run", count=1)[0]["ns"]

    def test_no_block_continues_the_one_before_it_on_both_sides(self):
        for batch in (16, 64, 256, 1000, 1024, 4096):
            layout = protocol.Layout(64, batch)
            here, there = layout.slots("initiator"), layout.slots("target")
            assert sorted(here) == sorted(there) == list(range(batch))
            assert not np.any((np.diff(here) == 1) & (np.diff(there) == 1)), batch

    def test_every_way_has_a_driver_and_every_package_a_version(self):
        for way in WAYS:
            library = LIBRARIES[way.library]
            assert (DRIVERS / library.driver).is_file()
            assert all("==" in package for package in library.packages)


class TestFaults:
    def test_without_a_fault_there_are_times(self, tmp_path):
        row = _measured(None, tmp_path)
        assert (row.counts, row.reason, len(row.rounds)) == (True, "", 2)

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            ("open", "the initiator: RuntimeError: no such device"),
            ("raise", "the initiator: ValueError: cannot move it"),
            ("die", "the initiator ended (3): out of luck"),
            ("babble", "the initiator answered b'this is no JSON'"),
        ],
    )
    def test_a_driver_that_fails_is_a_row_with_its_reason(self, fault, reason, tmp_path):
        row = _measured(fault, tmp_path)
        assert (row.counts, row.reason, row.median_us) == (False, reason, None)

    def test_a_driver_that_does_not_answer_is_killed(self, tmp_path, monkeypatch):
        contender = _contender("hang", tmp_path)
        assert contender.pair is not None
        pid = contender.pair.initiator.pid
        monkeypatch.setattr(conductor, "PATIENCE", 0.2)
        with rounds.closing([contender]):
            [found] = rounds.measure([contender], CASE, rounds=2, seconds=0.001, seed=3)
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert report.row(found).reason == "the initiator did not answer in time"

    def test_times_of_bytes_that_did_not_arrive_do_not_count(self, tmp_path):
        row = _measured("wrong", tmp_path)
        assert row.median_us is not None
        assert (row.counts, row.reason) == (False, "the bytes that arrived are wrong")

    def test_the_others_go_on(self, tmp_path):
        both = [_contender("die", tmp_path), _contender(None, tmp_path)]
        with rounds.closing(both):
            for _ in range(2):
                found = rounds.measure(both, CASE, rounds=3, seconds=0.001, seed=3)
        assert [report.row(it).counts for it in found] == [False, True]
        assert found[0].reason == "the initiator ended (3): out of luck"

    def test_an_interpreter_that_is_not_there(self, tmp_path):
        command = Command(str(tmp_path / "python"), FAULTY)
        contender = rounds.start(WAYS[0], command, 1 << 16, tmp_path, {})
        assert contender.reason == f"cannot start {tmp_path}/python: No such file or directory"


class TestEnvironments:
    def test_where_nothing_may_be_installed_a_library_is_missing(self, tmp_path):
        with pytest.raises(environments.Missing, match=r"nixl-cu12==.* is not installed"):
            environments.command(LIBRARIES["nixl"], tmp_path, install=False)
        assert not list(tmp_path.iterdir())

    @pytest.mark.slow
    def test_a_package_that_cannot_be_had_is_a_reason(self, tmp_path):
        library = Library("memcpy", (str(tmp_path / "absent"),))
        with pytest.raises(environments.Missing, match="absent"):
            environments.command(library, tmp_path / "peers", install=True)
