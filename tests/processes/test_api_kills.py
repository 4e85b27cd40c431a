"""Peers that die or freeze at random moments: they are lost in time, and nothing else changes.

A bounded soak with a fixed seed; a round is another death of another process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import statistics
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from transport import Engine, PeerLost, Settings, StaleRegion
from transport.testing.processes import PeerProcess
from transport.testing.servant import pattern

WAIT = 60.0
NBYTES = 2_000_000
LIVENESS = 2.0
ROUNDS = 10


@pytest.fixture
def steady():
    """Lives through it all."""
    with PeerProcess() as process:
        process.call("open")
        yield process.call("make", "x", NBYTES, seed=77, pool=True)


def _possessions():
    gc.collect()
    return tuple(sum(1 for _ in Path("/proc/self", kind).iterdir()) for kind in ("fd", "task"))


def test_peers_die_and_freeze_at_random_moments(steady):
    rng = random.Random(1)
    settings = Settings.from_env(liveness=LIVENESS)
    with Engine(settings=settings) as engine:
        _check(engine, steady, 77)
        before, took = None, {signal.SIGKILL: [], signal.SIGSTOP: []}
        for number in range(ROUNDS):
            death = signal.SIGSTOP if number % 4 == 3 else signal.SIGKILL
            took[death].append(_round(engine, steady, rng, number, death))
            before = before or _possessions()
        # Heard of, not found out by silence. A busy machine makes one of them late.
        assert statistics.median(took[signal.SIGKILL]) < LIVENESS, took
        assert min(took[signal.SIGSTOP]) < 2 * LIVENESS + 1, took
        end = time.monotonic() + WAIT
        while _possessions() > before:
            assert time.monotonic() < end, (before, _possessions())
            engine.notifications().poll()  # gives back what the dead have left
            time.sleep(0.01)


def _round(engine, steady, rng, number, death):
    """How long after its death the peer was lost."""
    way = rng.choice([{}, {"providers": ["tcp"], "listen": "127.0.0.1:0"}])
    ours = np.zeros(NBYTES, np.uint8)
    with PeerProcess() as peer, engine.register(ours) as region:
        peer.call("open", **way)
        remote = peer.call("make", "x", NBYTES, seed=number, pool=rng.random() < 0.5)
        _check(engine, remote, number)
        if rng.random() < 0.5:  # then it also reads and writes when it dies
            peer.begin("run", _HAMMER, remote=region.remote(), nbytes=NBYTES)
        moments = []
        timer = threading.Timer(
            rng.random() * rng.choice([0.002, 0.1]), _end, (peer, death, moments)
        )
        timer.start()
        lost = _use_until_lost(engine, remote, number)
        timer.join()
        _check(engine, steady, 77)
        region.close()
        assert region.quiet or death == signal.SIGSTOP
        peer.kill()
    return lost - moments[0]


def _end(peer, death, moments):
    moments.append(time.monotonic())
    os.kill(peer.pid, death)


def _use_until_lost(engine, remote, seed):
    """When it was lost. What is read before is whole."""
    truth, end = pattern(seed, NBYTES), time.monotonic() + WAIT
    while time.monotonic() < end:
        into = np.full(NBYTES, 0xEE, np.uint8)
        try:
            engine.read(remote, into).wait(WAIT)
            assert np.array_equal(into, truth)
            engine.write(truth, remote, notify=b"x").wait(WAIT)
        except PeerLost:
            return time.monotonic()
    raise AssertionError("never lost")


def _check(engine, remote, seed):
    into = np.zeros(NBYTES, np.uint8)
    engine.read(remote, into).wait(WAIT)
    assert np.array_equal(into, pattern(seed, NBYTES))


_HAMMER = """
import numpy as np
import transport

into = np.zeros(nbytes, np.uint8)
try:
    while True:
        servant.engine.read(remote, into).wait(60)
        servant.engine.write(into, remote).wait(60)
except transport.TransportError:
    pass
"""


@pytest.mark.parametrize("busy", [False, True])
def test_a_killed_process_leaves_nothing_on_the_machine(steady, busy):
    """No file in /dev/shm at any time, no socket; and its memory is not kept by those it met."""
    with Engine() as engine, PeerProcess() as peer:
        peer.call("open", listen="127.0.0.1:0")
        remotes = [peer.call("make", str(pool), NBYTES, seed=1, pool=pool) for pool in (0, 1)]
        for remote in remotes:
            _check(engine, remote, 1)
        if busy:
            peer.begin("run", _HAMMER, remote=steady, nbytes=NBYTES)
        used = Path(f"/proc/{peer.pid}/maps").read_text()
        used += "".join(str(fd.readlink()) for fd in _descriptors(peer.pid))
        assert "memfd:" in used
        assert "/dev/shm" not in used
        peer.kill()
        with pytest.raises((PeerLost, StaleRegion)):
            engine.read(remotes[0], bytearray(NBYTES)).wait(WAIT)
        sockets = Path("/proc/net/unix").read_text()
        for address in remotes[0].addresses:
            assert not address.startswith("unix:@") or address[5:] not in sockets
        end = time.monotonic() + WAIT
        while _mapped() and time.monotonic() < end:
            engine.notifications().poll()
            gc.collect()
            time.sleep(0.01)
        assert not _mapped()


def _descriptors(pid):
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            fd.readlink()
            yield fd


def _mapped():
    return "transport-segment" in Path("/proc/self/maps").read_text()
