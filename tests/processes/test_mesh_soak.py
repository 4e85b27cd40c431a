"""Random kills in a mesh that is called by many threads: right answers or typed errors, in time."""

from __future__ import annotations

import collections
import os
import random
import threading
import time
from pathlib import Path

import mesh_actors
import pytest
from patience import until

import transport
from transport import ActorCrashed, Policy

SECONDS = 5.0
DEADLINE = 30.0


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def callers(probes, end, outcomes, seed):
    pick = random.Random(seed)
    while time.monotonic() < end:
        number, blob = pick.randrange(1000), os.urandom(pick.choice([10, 300_000]))
        ways = [
            lambda n: probes.add.call(n).get(DEADLINE).values() == [10 + n] * 4,
            lambda n: probes.add.choose(n).get(DEADLINE) == 10 + n,
            lambda n: [f.get(DEADLINE) for f in probes.add.stream(n)] == [10 + n] * 4,
            lambda n, blob=blob: probes.slice(rank=n % 4).echo.call_one(blob).get(DEADLINE) == blob,
        ]
        try:
            outcomes[pick.choice(ways)(number)] += 1
        except ActorCrashed as crash:
            outcomes[crash.cause] += 1
        except Exception as error:
            outcomes[repr(error)] += 1


@pytest.mark.slow
def test_random_kills():
    outcomes = collections.Counter()
    with transport.local(4, host={"spares": 1}) as mesh:
        mesh.supervise(Policy("restart", limit=1000, backoff=0.0))
        probes = mesh.spawn("probe", mesh_actors.Probe, 10)
        end = time.monotonic() + SECONDS
        threads = [
            threading.Thread(target=callers, args=(probes, end, outcomes, seed))
            for seed in range(3)
        ]
        for thread in threads:
            thread.start()
        descriptors = open_descriptors()
        kills = 0
        while time.monotonic() < end:
            member = mesh._processes.member(random.randrange(4))
            member.process.kill()
            kills += 1
            until(lambda member=member: member.crash)
            until(lambda: not mesh.crashed)
        for thread in threads:
            thread.join(2 * DEADLINE)
            assert not thread.is_alive()
        until(lambda: not mesh.crashed)
        assert probes.add.call(1).get(DEADLINE).values() == [11] * 4
        until(lambda: open_descriptors() <= descriptors + 4)
    assert kills
    assert outcomes[True]
    assert set(outcomes) <= {True, "killed by SIGKILL"}
