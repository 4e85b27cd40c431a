"""Our engine against queue pairs that other people's packages made, each way.

The other end is a process whose RDMA is Debian's pyverbs, or `ibverbs` of PyPI; nothing of our C is
loaded there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import rig

from transport.engine.batch import Read, Write
from transport.engine.engine import Engine
from transport.memory.remote import NATIVE, Owner, RemoteRegion
from transport.testing.servant import pattern

pytestmark = pytest.mark.usefixtures("on_b")

WAIT = 60.0
SIZE = (1 << 20) + 3
_DEBIAN = "/usr/lib/python3/dist-packages"
_PROGRAM = Path(__file__).parents[1] / "support/foreign_peer.py"
_NO_SEGMENT = 0xFFFFFFFF


class Foreign:
    """The process, and its memory as a handle of ours."""

    def __init__(self, package, engine):
        address = next(it for it in engine.addresses if not it.startswith("unix:"))
        command = [sys.executable, str(_PROGRAM), package, rig.DEVICES["a"], address, str(SIZE)]
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _DEBIAN]))
        self._process = subprocess.Popen(
            [*rig.on("a"), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        facts = self._answer()
        self.incarnation = bytes.fromhex(facts["incarnation"])
        self._await_link(engine)
        native = NATIVE.pack(
            1, 1, bytes(16), facts["address"], SIZE, 0, _NO_SEGMENT, 3,
            facts["rkey"], *[0] * 7, 0, 0, 0, 0,
        )  # fmt: skip
        self.remote = RemoteRegion(Owner.make(self.incarnation, (), native), 0, None, (SIZE,))

    def _await_link(self, engine):
        end = time.monotonic() + WAIT
        while all(peer.incarnation != self.incarnation for peer in engine.peers):
            assert time.monotonic() < end
            time.sleep(0.01)

    def _answer(self):
        line = self._process.stdout.readline()
        assert line, f"the foreign peer ended with status {self._process.wait(WAIT)}"
        return json.loads(line)

    def ask(self, *wish):
        self._process.stdin.write(json.dumps(wish) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(WAIT) == 0
        self._process.stdout.close()


@pytest.fixture(scope="module")
def near(on_b):
    with Engine(listen="10.8.0.2:0") as engine:
        yield engine


@pytest.fixture(params=["pyverbs", "ibverbs"])
def foreign(request, near):
    peer = Foreign(request.param, near)
    yield peer
    peer.close()


def test_we_write_and_read_their_memory(near, foreign):
    source, into = pattern(1, SIZE), np.zeros(SIZE, np.uint8)
    there = near.write(source, foreign.remote).wait(WAIT)
    assert foreign.ask("holds", 1)
    foreign.ask("fill", 2)
    back = near.read(foreign.remote, into).wait(WAIT)
    assert np.array_equal(into, pattern(2, SIZE))
    assert {(it.provider, it.path) for it in (there, back)} == {("verbs", "rc")}


def test_we_move_many_pieces_both_ways_at_once(near, foreign):
    half, size = SIZE // 2, 4096
    foreign.ask("fill", 3)
    source, into = pattern(4, half), np.zeros(half, np.uint8)
    places = range(0, half - size, size)
    writes = [Write(source[i : i + size], foreign.remote.bytes(i, i + size)) for i in places]
    reads = [
        Read(foreign.remote.bytes(half + i, half + i + size), into[i : i + size])
        for i in reversed(places)
    ]
    assert near.submit([*writes, *reads]).wait(WAIT).path == "rc"
    length = len(places) * size
    assert np.array_equal(into[:length], pattern(3, SIZE)[half : half + length])
    near.read(foreign.remote.bytes(0, half), into).wait(WAIT)
    assert np.array_equal(into[:length], source[:length])


def test_they_write_and_read_our_memory(near, foreign):
    memory = pattern(5, SIZE)
    with near.register(memory) as region:
        fields = NATIVE.unpack(region.remote()._owner.native)
        foreign.ask("move", "read", fields[3], fields[8], SIZE)
        assert foreign.ask("holds", 5)
        foreign.ask("fill", 6)
        foreign.ask("move", "write", fields[3], fields[8], SIZE)
        assert np.array_equal(memory, pattern(6, SIZE))


def test_notifications_each_way(near, foreign):
    for number, text in enumerate(("one", "two", "three")):
        near.write(pattern(number, SIZE), foreign.remote, notify=text.encode()).wait(WAIT)
        assert foreign.ask("notified") == [number, 1, text]
        assert foreign.ask("holds", number)
    with near.register(np.zeros(8, np.uint8)) as region:
        number = NATIVE.unpack(region.remote()._owner.native)[0]
        for text in ("four", "five", "six"):
            foreign.ask("notify", number, text)
            found = near.notifications().wait(WAIT)
            assert found.payload == text.encode()
            assert found.peer.incarnation == foreign.incarnation
