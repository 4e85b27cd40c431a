"""Random kills in a mesh that is called by many threads: right answers or typed errors, in time.

`MESH_SOAK_SECONDS` (5) long, with `MESH_SOAK_ACTORS` (4) and a pause of `MESH_SOAK_PAUSE` (0)
seconds between two kills; the measure is 180 s, 8 actors, 1 s.
"""

from __future__ import annotations

import collections
import gc
import os
import random
import threading
import time
from pathlib import Path

import mesh_actors
import numpy as np
import pytest
from patience import until

import transport
from transport import ActorCrashed, Policy

SECONDS = float(os.environ.get("MESH_SOAK_SECONDS", "5"))
ACTORS = int(os.environ.get("MESH_SOAK_ACTORS", "4"))
PAUSE = float(os.environ.get("MESH_SOAK_PAUSE", "0"))
DEADLINE = 30.0


def open_descriptors():
    gc.collect()  # errors and the frames that they hold, and with them lost peers
    return len(list(Path("/proc/self/fd").iterdir()))


def comes_back(probes, rank, value):
    echoed = probes.slice(rank=rank).echo.call_one(value).get(DEADLINE)
    return bool(np.array_equal(echoed, value))


def come_back(probes, value):
    return all(
        np.array_equal(each, value) for each in probes.echo.call(value).get(DEADLINE).values()
    )


def callers(probes, end, outcomes, slowest, seed):
    pick = random.Random(seed)
    while time.monotonic() < end:
        number, rank = pick.randrange(1000), pick.randrange(ACTORS)
        blob = os.urandom(pick.choice([10, 300_000]))
        array = np.arange(pick.choice([1, 1000, 500_000]), dtype="int64") * number
        ways = [
            lambda n: probes.add.call(n).get(DEADLINE).values() == [10 + n] * ACTORS,
            lambda n: probes.add.choose(n).get(DEADLINE) == 10 + n,
            lambda n: [f.get(DEADLINE) for f in probes.add.stream(n)] == [10 + n] * ACTORS,
            lambda n, rank=rank, blob=blob: comes_back(probes, rank, blob),
            lambda n, rank=rank, array=array: comes_back(probes, rank, array),
            lambda n, array=array: come_back(probes, array),
        ]
        begin = time.monotonic()
        try:
            outcome = pick.choice(ways)(number)
        except ActorCrashed as crash:
            outcome = crash.cause
        except Exception as error:
            outcome = repr(error)
        outcomes[outcome] += 1
        slowest[seed] = max(slowest[seed], time.monotonic() - begin)


@pytest.mark.slow
def test_random_kills():
    outcomes, slowest = collections.Counter(), [0.0] * 3
    with transport.local(ACTORS, host={"spares": 1}) as mesh:
        mesh.supervise(Policy("restart", limit=1000, backoff=0.0))
        probes = mesh.spawn("probe", mesh_actors.Probe, 10)
        assert come_back(probes, np.zeros(500_000))  # which opens this process's engine
        end = time.monotonic() + SECONDS
        threads = [
            threading.Thread(target=callers, args=(probes, end, outcomes, slowest, seed))
            for seed in range(3)
        ]
        for thread in threads:
            thread.start()
        descriptors = open_descriptors()
        kills = 0
        while time.monotonic() < end:
            member = mesh._processes.member(random.randrange(ACTORS))
            member.process.kill()
            kills += 1
            until(lambda member=member: member.crash)
            until(lambda: not mesh.crashed)
            time.sleep(PAUSE)
        for thread in threads:
            thread.join(2 * DEADLINE)
            assert not thread.is_alive()
        until(lambda: not mesh.crashed)
        assert probes.add.call(1).get(DEADLINE).values() == [11] * ACTORS
        until(lambda: open_descriptors() <= descriptors + 4 * ACTORS)
    print(f"{kills} kills, slowest call {max(slowest):.2f} s: {dict(outcomes)}")
    assert kills
    assert outcomes[True]
    assert max(slowest) < 2 * DEADLINE
    assert set(outcomes) <= {True, "killed by SIGKILL"}
