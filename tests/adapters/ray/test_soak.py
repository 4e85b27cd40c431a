"""Actors that are killed at any moment while all of them read each other's tensors.

A short run by default. RAY_SOAK_SECONDS, RAY_SOAK_ACTORS (that live at one time; one that is killed
is replaced) and RAY_SOAK_PAUSE make it a long one. A pair is one that gave and one that took.

Where something takes too long, all actors tell what their threads are at. If one of them is in the
adapter, that is a failure of ours; if not, Ray is waiting for itself, and the test is skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import pytest
import ray
from ray_actors import BIG, Member, stacks_of

import transport.adapters.ray as adapter

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]

SECONDS = float(os.environ.get("RAY_SOAK_SECONDS", "5"))
ACTORS = int(os.environ.get("RAY_SOAK_ACTORS", "3"))
PAUSE = float(os.environ.get("RAY_SOAK_PAUSE", "1.0"))  # seconds between two kills
PATIENCE = 40.0  # seconds; Ray's own is a minute, and nothing may need that
REPORTS = Path("build/reports")
STARTING = 150.0  # seconds, for actors to come up on a machine that has other work
COUNTS = (16, BIG // 8, BIG, 4 * BIG)


class Soak:
    """What is under way, and what came of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.members: list[Any] = [None] * ACTORS
        self.pids: dict[int, int] = {}  # of those that are up
        self.asked: dict[Any, int] = {}
        self.kills = 0
        for i in range(ACTORS):
            self.replace(i)
        self.pairs: set[tuple[str, str]] = set()
        self.ends: Counter[str] = Counter()
        self.slowest = 0.0
        self.pending: dict[Any, tuple[float, tuple[str, str]]] = {}

    def begin(self) -> None:
        maker, reader = (self.members[i] for i in self.random.sample(list(self.pids), 2))
        count, seed = self.random.choice(COUNTS), self.random.randrange(1000)
        ref = maker.numbers.remote(count, seed)
        taken = reader.compare_numbers.remote(ref, count, seed)
        pair = (maker._actor_id.hex(), reader._actor_id.hex())
        self.pending[taken] = (time.monotonic(), pair)

    def end_some(self) -> None:
        done, _ = ray.wait(list(self.pending), num_returns=1, timeout=1.0)
        for ref in done:
            begun, pair = self.pending.pop(ref)
            self.slowest = max(self.slowest, time.monotonic() - begun)
            self.ends[self._outcome(ref, pair)] += 1
        since = min((begun for begun, _ in self.pending.values()), default=time.monotonic())
        if time.monotonic() - since > PATIENCE:
            stand_still(list(self.pids.values()))

    def _outcome(self, ref, pair) -> str:
        try:
            wrong = ray.get(ref, timeout=PATIENCE)
        except ray.exceptions.GetTimeoutError:
            raise
        except Exception as error:  # one of the two has gone, or was about to
            cause = getattr(error, "cause", None) or error
            return type(cause).__name__
        assert wrong == []
        self.pairs.add(pair)
        return "right"

    def kill(self) -> None:
        if len(self.pids) < 3:  # two are needed to go on
            return
        victim = self.random.choice(list(self.pids))
        os.kill(self.pids.pop(victim), signal.SIGKILL)
        self.kills += 1
        self.replace(victim)

    def replace(self, i: int) -> None:
        self.members[i] = Member.remote()
        self.asked[self.members[i].facts.remote()] = i

    def look_who_is_up(self) -> None:
        done, _ = (
            ray.wait(list(self.asked), num_returns=len(self.asked), timeout=0)
            if self.asked
            else ([], [])
        )
        for ref in done:
            self.pids[self.asked.pop(ref)] = ray.get(ref)[1]


def stand_still(pids: list[int]) -> NoReturn:
    """Fails if one of the processes is in the adapter, or does not even tell."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(2.0)  # a signal has no answer
    stacks = {pid: stacks_of(pid).read_text() for pid in pids}
    report = "\n".join(f"process {pid}\n{stack}" for pid, stack in stacks.items())
    (REPORTS / "ray-soak-stacks.txt").write_text(report)
    ours = [pid for pid, stack in stacks.items() if not stack or adapter.__file__ in stack]
    if ours:
        pytest.fail(f"no end within {PATIENCE:g} s; {ours} are in the adapter:\n{report}")
    pytest.skip(f"ray: no end within {PATIENCE:g} s, and nobody is in the adapter: {REPORTS}")


def test_killing_actors_at_random():
    REPORTS.mkdir(parents=True, exist_ok=True)
    soak = Soak(int(os.environ.get("RAY_SOAK_SEED", "1")))
    ray.get(list(soak.asked), timeout=STARTING)
    soak.look_who_is_up()
    end = time.monotonic() + SECONDS
    next_kill = time.monotonic() + PAUSE
    while time.monotonic() < end:
        while len(soak.pending) < 2 * ACTORS:
            soak.begin()
        soak.end_some()
        soak.look_who_is_up()
        if time.monotonic() > next_kill:
            soak.kill()
            next_kill = time.monotonic() + PAUSE
    while soak.pending:
        soak.end_some()
    assert soak.ends["right"] > 0
    assert set(soak.ends) <= ALLOWED, soak.ends
    left = ray.get([m.regions_after.remote() for m in soak.members], timeout=STARTING)
    assert left == [0] * ACTORS
    assert not adapter.engine().regions
    tell(soak)


ALLOWED = {
    "right",
    "PeerLost",
    "StaleRegion",
    "ActorDiedError",
    "ActorUnavailableError",
    "RayActorError",
    "ObjectLostError",
    "OwnerDiedError",
}


def tell(soak: Soak) -> None:
    """For docs/status.md."""
    report = {
        "seconds": SECONDS,
        "actors": ACTORS,
        "kills": soak.kills,
        "pairs": len(soak.pairs),
        "ends": dict(soak.ends),
        "slowest_s": round(soak.slowest, 2),
    }
    (REPORTS / "ray-soak.json").write_text(json.dumps(report, indent=1) + "\n")
