"""The owner of the memory sleeps in C, or holds the GIL: everybody else goes on meanwhile."""

from __future__ import annotations

import itertools
import os
import time

import numpy as np
import pytest

from transport import Engine, Settings
from transport.testing.processes import PeerProcess
from transport.testing.servant import pattern

WAIT = 60.0
NBYTES = 3_000_000
SECONDS = float(os.environ.get("BUSY_SECONDS", "5"))
LIVENESS = 1.0  # so that its silence would be noticed many times over

SLEEPS = {
    "holding the GIL": "import ctypes; ctypes.PyDLL(None).usleep(int(seconds * 1e6))",
    "in C": "import ctypes; ctypes.CDLL(None).usleep(int(seconds * 1e6))",
    "in Python": "import time\nend = time.time() + seconds\nwhile time.time() < end: pass",
}
WAYS = {"shm": {}, "tcp": {"providers": "tcp", "listen": "127.0.0.1:0"}}


@pytest.mark.slow
@pytest.mark.parametrize("sleep", SLEEPS)
@pytest.mark.parametrize("way", WAYS)
def test_transfers_complete_while_the_owner_sleeps(sleep, way):
    patient = Settings.from_env(liveness=LIVENESS)
    with PeerProcess() as owner, Engine(settings=patient, **WAYS[way]) as engine:
        owner.call("open", settings=patient, **WAYS[way])
        remotes = [owner.call("make", str(p), NBYTES, seed=p, pool=bool(p)) for p in (0, 1)]
        for remote in remotes:
            engine.read(remote[:10], bytearray(10)).wait(WAIT)
        owner.begin("run", SLEEPS[sleep], seconds=SECONDS)
        time.sleep(0.05)  # until it does
        done = _use_while_busy(engine, owner, remotes)
        owner.answer(WAIT)
        assert done >= 10, "they waited for the owner"
        note = owner.call("notifications", 1, WAIT)
        assert note == [(b"while you slept", "1")]
        engine.read(remotes[0], bytearray(NBYTES)).wait(WAIT)


def _use_while_busy(engine, owner, remotes):
    """How many rounds of transfers ended before the owner did anything."""
    engine.write(pattern(1, NBYTES), remotes[1], notify=b"while you slept").wait(WAIT)
    for done in itertools.count():
        for seed, remote in enumerate(remotes):
            into = np.zeros(NBYTES, np.uint8)
            engine.read(remote, into).wait(WAIT)
            assert np.array_equal(into, pattern(seed, NBYTES))
            engine.write(into, remote).wait(WAIT)
        if not owner.busy:
            return done
    raise AssertionError
