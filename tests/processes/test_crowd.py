"""Many engines on one machine, all to all: ports, descriptors, threads and memory.

`CROWD_PROCESSES` (4) times `CROWD_ENGINES` (4) of them, `CROWD_ROUNDS` (3) times. The long run has
64: `CROWD_PROCESSES=8 CROWD_ENGINES=8`, and `CROWD_PROCESSES=64 CROWD_ENGINES=1`.
"""

from __future__ import annotations

import contextlib
import os

import pytest

from transport.testing.processes import PeerProcess

PROCESSES = int(os.environ.get("CROWD_PROCESSES", "4"))
ENGINES = int(os.environ.get("CROWD_ENGINES", "4"))
ROUNDS = int(os.environ.get("CROWD_ROUNDS", "3"))
WAIT = 600.0
MIB = 1 << 20

OPEN = """
import numpy as np
from possessions import possessions
from transport import Engine, Settings

def belongings():
    return possessions()

servant.bare = belongings()
# All of them connect at once, on whatever cores there are: 2016 handshakes.
patient = Settings.from_env(connect_timeout=600.0)
servant.crowd = [Engine(settings=patient, **options) for _ in range(count)]
servant.boards = [np.zeros((everybody, nbytes), np.uint8) for _ in servant.crowd]
for engine, board in zip(servant.crowd, servant.boards):
    board[:] = engine.incarnation[0]
servant.open_regions = [e.register(b) for e, b in zip(servant.crowd, servant.boards)]
result = [(region.remote(), e.incarnation[0], e.addresses)
          for region, e in zip(servant.open_regions, servant.crowd)]
"""

# Each engine reads its own row of every board, and then writes its own mark there.
ROUND = """
import numpy as np
from possessions import possessions
from transport import Read, Write

for at, engine in enumerate(servant.crowd, first):
    into = np.zeros((len(remotes), nbytes), np.uint8)
    engine.submit([Read(r[at], i) for r, i in zip(remotes, into)], deadline=600).wait(600)
    assert (into == np.array(expected, np.uint8)[:, None]).all(), (at, into[:, 0].tolist())
    mark = np.full(nbytes, expected[at], np.uint8)
    engine.submit([Write(mark, r[at]) for r in remotes], deadline=600).wait(600)
    into[:] = 0
    engine.submit([Read(r[at], i) for r, i in zip(remotes, into)], deadline=600).wait(600)
    assert (into == expected[at]).all()
    back = np.array(expected, np.uint8)[:, None] * np.ones((1, nbytes), np.uint8)
    engine.submit([Write(b, r[at]) for r, b in zip(remotes, back)], deadline=600).wait(600)
result = possessions(), sorted(len(engine.peers) for engine in servant.crowd)
"""

CLOSE = """
from possessions import possessions
for region in servant.open_regions:
    region.close()
for engine in servant.crowd:
    engine.close()
servant.crowd, servant.boards, servant.open_regions = [], [], []
region = engine = None
result = servant.bare, possessions()
"""


def _all(crowd, code, own=None, **values):
    """Runs it in all processes at once; `own` has values for each."""
    for process, more in zip(crowd, own or [{}] * len(crowd)):
        process.begin("run", code, **values, **more)
    return [process.answer(WAIT) for process in crowd]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "options",
    [{}, {"providers": ("tcp",), "listen": "127.0.0.1:0"}],
    ids=["one host", "tcp"],
)
def test_all_to_all(options):
    nbytes, everybody = 4096, PROCESSES * ENGINES
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(PeerProcess()) for _ in range(PROCESSES)]
        sizes = {"count": ENGINES, "everybody": everybody, "nbytes": nbytes}
        opened = _all(crowd, OPEN, options=options, **sizes)
        found = [each for process in opened for each in process]
        addresses = [address for _, _, theirs in found for address in theirs]
        assert len(set(addresses)) == len(addresses), "two engines have one address"
        own = [{"first": number * ENGINES} for number in range(PROCESSES)]
        values = {"remotes": [remote for remote, _, _ in found], "nbytes": nbytes}
        values["expected"] = [mark for _, mark, _ in found]
        rounds = [_all(crowd, ROUND, own, **values) for _ in range(ROUNDS)]
        for engines in rounds[-1]:
            assert set(engines[1]) <= {everybody - 1, everybody}, "not all to all"
        _flat([[now for now, _ in each] for each in rounds])
        for bare, closed in _all(crowd, CLOSE):
            for what in ("descriptors", "threads"):
                assert closed[what] <= bare[what] + 2, (what, bare, closed)


def _flat(rounds):
    """From the second round on nothing grows, in any process."""
    for before, after in zip(rounds[1], rounds[-1]):
        assert after["descriptors"] <= before["descriptors"], (before, after)
        assert after["threads"] <= before["threads"], (before, after)
        assert after["mappings"] <= before["mappings"] + 8, (before, after)
        assert after["resident"] <= before["resident"] + 8 * MIB, (before, after)
    grown = sum(now["resident"] for now in rounds[-1]) - sum(now["resident"] for now in rounds[1])
    print(f"\n{rounds[-1][0]}, all {PROCESSES} processes grew {grown / MIB:.1f} MiB")
