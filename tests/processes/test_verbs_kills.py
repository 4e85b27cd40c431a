"""Over the double of libibverbs: peers that are killed in the middle, ten thousand regions, shapes
of any kind from many threads while the path fails.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from fakeverbs import LIBRARY, Double

from transport import Engine, PeerLost, Read, Settings, StaleRegion
from transport.testing.processes import PeerProcess
from transport.testing.servant import pattern

WAIT = 60.0
NBYTES = 2_000_000
ROUNDS = 6
REGIONS = 10_000
SHAPES = 25


def _options():
    return {
        "providers": ("verbs", "tcp"),
        "secret": "a secret of this test run only",
        "listen": "127.0.0.1:0",
        "settings": Settings.from_env(verbs_lib=LIBRARY),
    }


def _check(engine, remote, seed, path="rc"):
    into = np.zeros(NBYTES, np.uint8)
    assert engine.read(remote, into).wait(WAIT).path == path
    assert np.array_equal(into, pattern(seed, NBYTES))


_HAMMER = """
import numpy as np
import transport

into = np.zeros(nbytes, np.uint8)
try:
    while True:
        servant.engine.read(remote, into).wait(60)
        servant.engine.write(into, remote, notify=b"x").wait(60)
except transport.TransportError:
    pass
"""


def test_killed_in_the_middle():
    """What a dead peer did with its queue pairs is over at once; another peer notices nothing."""
    rng = random.Random(5)
    with Engine(**_options()) as engine, PeerProcess() as steady:
        steady.call("open", **_options())
        lasting = steady.call("make", "x", NBYTES, seed=77)
        for number in range(ROUNDS):
            with PeerProcess() as peer:
                _round(engine, peer, rng, number)
            _check(engine, lasting, 77)


def _round(engine, peer, rng, number):
    peer.call("open", **_options())
    remote = peer.call("make", "x", NBYTES, seed=number)
    _check(engine, remote, number)
    ours = np.zeros(NBYTES, np.uint8)
    with engine.register(ours) as region:
        if number % 2:
            peer.begin("run", _HAMMER, remote=region.remote(), nbytes=NBYTES)
        timer = threading.Timer(rng.random() / 10, os.kill, (peer.pid, signal.SIGKILL))
        timer.start()
        _use_until_lost(engine, remote, number)
        timer.join()
    assert region.quiet


def _use_until_lost(engine, remote, seed):
    truth, end = pattern(seed, NBYTES), time.monotonic() + WAIT
    while time.monotonic() < end:
        into = np.full(NBYTES, 0xEE, np.uint8)
        started = [engine.read(remote, into), engine.write(truth, remote, notify=b"x")]
        try:
            for transfer in started:
                transfer.wait(WAIT)
            assert np.array_equal(into, truth)
        except PeerLost:
            return
    raise AssertionError("never lost")


_MANY = """
import numpy as np

lump = servant.arrays["x"]
regions = [servant.engine.register(lump[8 * i : 8 * i + 8]) for i in range(count)]
servant.regions.update((str(i), region) for i, region in enumerate(regions))
result = [region.remote() for region in regions]
"""


def test_ten_thousand_regions():
    """Each is reached, and a closed one is stale while its neighbours are not."""
    with Engine(**_options()) as engine, PeerProcess() as peer:
        peer.call("open", **_options())
        peer.call("make", "x", REGIONS * 8, seed=3)
        handles = peer.call("run", _MANY, count=REGIONS)
        into = np.zeros(REGIONS * 8, np.uint8)
        reads = [Read(handle, into[8 * i : 8 * i + 8]) for i, handle in enumerate(handles)]
        with engine.register(into):
            for at in range(0, REGIONS, 500):
                assert engine.submit(reads[at : at + 500]).wait(WAIT).path == "rc"
            assert np.array_equal(into, pattern(3, REGIONS * 8))
            peer.call("close_region", "5000")
            with pytest.raises(StaleRegion):
                engine.submit(reads[5000:5001]).wait(WAIT)
            engine.submit(reads[4999:5000] + reads[5001:5002]).wait(WAIT)


def _index(rng, length):
    first = rng.randrange(length)
    return slice(first, rng.randint(first, length), rng.randint(1, 3))


def _move_shapes(engine, remote, truth, seed, failed):
    rng = random.Random(seed)
    try:
        for _ in range(SHAPES):
            part = tuple(_index(rng, length) for length in truth.shape)  # of no bytes, now and then
            into = np.zeros_like(truth)
            assert engine.read(remote[part], into[part]).wait(WAIT).path in ("rc", "stream", "tcp")
            expected = np.zeros_like(truth)
            expected[part] = truth[part]
            assert np.array_equal(into, expected)
    except BaseException as error:
        failed.append(error)


def test_shapes_from_many_threads_while_the_path_fails():
    """Whatever is cut out, and whenever a queue pair fails: each comes as it is."""
    shape, failed, double = (37, 41, 53), [], Double()
    with Engine(**_options()) as engine, PeerProcess() as peer:
        peer.call("open", **_options())
        nbytes = 37 * 41 * 53 * 4
        remote = peer.call("make", "x", nbytes, seed=8, shape=shape, dtype="uint32")
        truth = pattern(8, nbytes).view(np.uint32).reshape(shape)
        threads = [
            threading.Thread(target=_move_shapes, args=(engine, remote, truth, seed, failed))
            for seed in range(8)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            double.set(fail_status=12, fail_after=20)
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        double.reset()
    assert not failed, failed
