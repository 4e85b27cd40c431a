"""Queue pairs that nobody uses are closed above a limit, over the double of libibverbs: the least
recently used first, on both ends, with nothing lost, and opened again when they are used.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fakeverbs import LIBRARY, Double
from patience import until

from transport import Engine
from transport.config import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transport import Lane, RemoteRegion

WAIT = 60.0
SIZE = 4096
FOREVER = 86400.0


class Hub:
    """One engine with a limit, and others with memory that it writes to."""

    def __init__(self, root: Path, stack: contextlib.ExitStack) -> None:
        self._root, self._stack = root, stack
        self.engine: Engine
        self.others: list[Engine] = []
        self.memory: list[np.ndarray] = []
        self.handles: list[RemoteRegion] = []

    def open(self, limit: int = 65536, idle: float = FOREVER, qps: int = 1) -> Engine:
        made = Settings.from_env(
            verbs_lib=LIBRARY,
            verbs_sysfs=self._root,
            verbs_idle_qps=limit,
            verbs_idle_time=idle,
            verbs_qps_per_peer=qps,
        )
        secret = "a secret of this test only"
        engine = Engine(
            providers=("verbs", "tcp"), settings=made, secret=secret, listen="127.0.0.1:0"
        )
        return self._stack.enter_context(engine)

    def join(self, count: int, idle: float, qps: int = 1) -> None:
        for number in range(count):
            other = self.open(idle=idle, qps=qps)
            memory = np.zeros(SIZE, np.uint8)
            region = self._stack.enter_context(other.register(memory))
            self.others.append(other)
            self.memory.append(memory)
            self.handles.append(region.remote())
            self.write(number, 1)

    def write(self, number: int, value: int) -> None:
        source = np.full(SIZE, value, np.uint8)
        done = self.engine.write(source, self.handles[number], provider="verbs").wait(WAIT)
        assert done.provider == "verbs"
        assert np.array_equal(self.memory[number], source)

    def lanes(self, number: int) -> list[Lane]:
        wanted = self.others[number].incarnation
        return next(p for p in self.engine.peers if p.incarnation == wanted).lanes()

    def open_to(self) -> list[int]:
        found = range(len(self.others))
        return [n for n in found if any(lane.state != "unused" for lane in self.lanes(n))]


@pytest.fixture
def hub(double: Double, tmp_path: Path) -> Iterator[Hub]:
    with contextlib.ExitStack() as stack:
        yield Hub(tmp_path, stack)
    assert double.get("qps") == 0


def test_the_least_recently_used_are_closed(double: Double, hub: Hub) -> None:
    hub.engine = hub.open(limit=3, idle=0.05)
    hub.join(8, idle=0.02)
    hub.write(1, 2)
    until(lambda: double.get("qps") == 6, "three at each end are left")
    assert hub.open_to() == [1, 6, 7]
    assert hub.engine.rails()[0].queue_pairs == 3
    (lane,) = hub.lanes(0)
    assert (lane.state, lane.reason, lane.failures, lane.errors) == ("unused", "", 0, 0)
    hub.write(0, 3)
    assert hub.lanes(0)[0].state == "ready"
    until(lambda: hub.open_to() == [0, 1, 7], "and one has made room for it")
    assert double.get("qps") == 6


def test_below_the_limit_all_stay(double: Double, hub: Hub) -> None:
    hub.engine = hub.open(limit=4, idle=0.001)
    hub.join(4, idle=0.001)
    time.sleep(0.1)
    for number in range(4):
        hub.write(number, 2)
    assert double.get("qps") == 8
    assert [hub.lanes(n)[0].reconnects for n in range(4)] == [0, 0, 0, 0]


def test_the_peer_has_a_say(double: Double, hub: Hub) -> None:
    """What it reads and writes here only it knows: its queue pair is in use, and stays."""
    hub.engine = hub.open(limit=0, idle=0.02)
    hub.join(1, idle=FOREVER)
    word = np.zeros(1, np.int64)
    with hub.engine.register(word) as region:
        remote = region.remote()
        for number in range(1, 30):
            back = hub.others[0].write(np.full(1, number), remote, provider="verbs").wait(WAIT)
            assert back.provider == "verbs"
            time.sleep(0.01)  # so that the hub asks meanwhile
    assert word[0] == 29
    (lane,) = hub.others[0].peers[0].lanes()
    assert (lane.state, lane.reconnects, lane.errors) == ("ready", 0, 0)
    assert double.get("qps") == 2


def test_all_lanes_of_a_link_go_together(double: Double, hub: Hub) -> None:
    hub.engine = hub.open(limit=0, idle=0.02, qps=4)
    hub.join(2, idle=0.02, qps=4)
    for value in range(2, 6):
        until(lambda: double.get("qps") == 0, "none is left")
        hub.write(0, value)
        hub.write(1, value)


@pytest.mark.slow
def test_nothing_is_lost_while_they_come_and_go(double: Double, hub: Hub) -> None:
    """Every lane is idle at once, at both ends, and used again at any moment from either side."""
    hub.engine = hub.open(limit=0, idle=1e-3, qps=2)
    hub.join(6, idle=1e-3, qps=2)
    until(lambda: double.get("qps") == 0, "all were idle once")
    back = np.zeros((6, 8), np.uint8)
    errors: list[BaseException] = []

    def push(number: int) -> None:
        try:
            for turn in range(60):
                source = np.full(SIZE, turn, np.uint8)
                words = f"{number} {turn}".encode()
                hub.engine.write(source, hub.handles[number], notify=words, provider="verbs").wait(
                    WAIT
                )
                time.sleep(random.random() * 0.004)
        except BaseException as error:
            errors.append(error)

    def pull(number: int, remote: RemoteRegion) -> None:
        try:
            for turn in range(60):
                source = np.full(8, turn, np.uint8)
                hub.others[number].write(source, remote, provider="verbs").wait(WAIT)
                time.sleep(random.random() * 0.004)
        except BaseException as error:
            errors.append(error)

    with hub.engine.register(back) as region:
        rows = [region.remote()[n] for n in range(6)]
        threads = [threading.Thread(target=push, args=(n,)) for n in range(6)]
        threads += [threading.Thread(target=pull, args=(n, rows[n])) for n in range(6)]
        for thread in threads:
            thread.start()
        for number, other in enumerate(hub.others):
            seen = {bytes(other.notifications().wait(WAIT).payload) for _ in range(60)}
            assert seen == {f"{number} {turn}".encode() for turn in range(60)}
        for thread in threads:
            thread.join(WAIT)
    assert not errors, errors[0]
    assert np.all(back == 59)
    assert all(np.all(memory == 59) for memory in hub.memory)
    assert all(hub.lanes(n)[0].reconnects for n in range(6))
    assert not any(lane.errors for n in range(6) for lane in hub.lanes(n))
    until(lambda: double.get("qps") == 0, "and all are closed again")
