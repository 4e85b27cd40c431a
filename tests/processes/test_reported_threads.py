"""Faults that users of such systems reported: threads that share an engine, and the GIL."""

from __future__ import annotations

import json
import pickle
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from transport import Engine, Read, RemoteRegion, TransportError, Write
from transport.testing.processes import PeerProcess
from transport.testing.servant import pattern

WAIT = 60.0
NBYTES = 100_000
THREADS = 8
WAYS = {"shm": {}, "tcp": {"providers": "tcp", "listen": "127.0.0.1:0"}}


@pytest.fixture(params=WAYS)
def pair(request):
    with PeerProcess() as far, Engine(**WAYS[request.param]) as engine:
        far.call("open", **WAYS[request.param])
        yield far, engine


def _everything(engine, remote, number):
    """One thread's share: each has its own part of the memory, all else is shared."""
    rng = random.Random(number)
    part = remote[number * NBYTES : (number + 1) * NBYTES]
    truth = pattern(0, THREADS * NBYTES)[number * NBYTES : (number + 1) * NBYTES].copy()
    prepared = engine.prepare(Read(part, into := np.zeros(NBYTES, np.uint8)))
    for _ in range(60):
        how = rng.randrange(6)
        if how == 0:
            with engine.register(np.zeros(1000, np.uint8)) as region:
                engine.read(region.remote(), bytearray(1000)).wait(WAIT)
        elif how == 1:
            prepared.run(WAIT)
            assert np.array_equal(into, truth)
        elif how == 2:
            truth = np.random.default_rng(rng.randrange(99)).permutation(truth)
            engine.write(truth, part, notify=b"%d" % number).wait(WAIT)
        elif how == 3:
            transfer = engine.read(part, np.zeros(NBYTES, np.uint8))
            transfer.cancel()
            assert transfer.wait_quiet(WAIT)
        elif how == 4:
            memory = engine.empty(NBYTES, "uint8")
            transfer = engine.submit([Read(part, memory)])
            while not transfer.done:
                time.sleep(0)
            assert transfer.exception() is None
            assert np.array_equal(memory, truth)
        else:
            _look(engine, remote)
    return truth


def _look(engine, remote):
    engine.notifications().poll()
    for peer in engine.peers:
        peer.counters()
        if peer.incarnation == remote.incarnation:
            peer.explain(remote)


def test_one_engine_in_eight_threads(pair):
    """H4: submits, polls, waits, registers, cancels, prepares and looks, all at once."""
    far, engine = pair
    remote = far.call("make", "x", THREADS * NBYTES, seed=0)
    far.begin("run", _DRAINS, seconds=WAIT)
    with ThreadPoolExecutor(THREADS) as threads:
        begun = [threads.submit(_everything, engine, remote, number) for number in range(THREADS)]
        parts = [each.result(2 * WAIT) for each in begun]
    engine.write(bytes(1), remote[:1], notify=b"end").wait(WAIT)
    parts[0][0] = 0
    far.answer(WAIT)
    assert far.call("content", "x") == np.concatenate(parts).tobytes()


_DRAINS = """
while servant.engine.notifications().wait(seconds).payload != b"end":
    pass
"""


class Heartbeat:
    """A thread that counts as long as it gets the GIL."""

    def __init__(self):
        self.ticks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._stop.wait(0.001):
            self.ticks += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("call", ["wait", "wait_quiet", "run", "notifications", "connect"])
def test_other_threads_run_while_one_waits(call):
    """H5: whatever blocks, blocks without the GIL."""
    ways = WAYS["tcp"]
    with PeerProcess() as far, Engine(**ways) as engine, Engine(**ways) as stranger:
        _, addresses = far.call("open", **ways)
        remote = far.call("make", "x", NBYTES)
        into = bytearray(NBYTES)
        prepared = engine.prepare(Read(remote, into))
        prepared.run(WAIT)
        far.stop()
        transfer = engine.write(into, remote)
        place = next(a for a in addresses if not a.startswith("unix:"))
        calls = {
            "wait": lambda: transfer.wait(0.5),
            "wait_quiet": lambda: transfer.wait_quiet(0.5) or _raise(TimeoutError()),
            "run": lambda: prepared.run(0.5),
            "notifications": lambda: engine.notifications().wait(0.5),
            "connect": lambda: stranger.connect(place, timeout=0.5),
        }
        with Heartbeat() as heart:
            with pytest.raises((TimeoutError, TransportError)):
                calls[call]()
            ticks = heart.ticks
        far.go_on()
        assert ticks >= 20, f"{ticks} in half a second"


def _raise(error):
    raise error


def test_large_copies_do_not_hold_the_gil():
    """H5: also what moves within submit, and what registers."""
    nbytes = 256 << 20
    with Engine() as one, Engine() as other, Heartbeat() as heart:
        memory = np.zeros(nbytes, np.uint8)
        with one.register(memory) as region:
            into = np.zeros(nbytes, np.uint8)
            before, count = heart.ticks, 0
            while heart.ticks - before < 20 and count < 200:
                other.read(region.remote(), into).wait(WAIT)
                count += 1
            assert count < 200


def test_handles_are_written_and_read_by_threads_at_once():
    """H12: no state is shared between those who serialise, so no tensor is another's."""
    with Engine() as engine:
        regions = [engine.register(np.full(8, n, np.uint8)) for n in range(THREADS)]

        def work(number):
            remote = regions[number].remote()
            for _ in range(300):
                copies = [
                    pickle.loads(pickle.dumps(remote)),
                    RemoteRegion.from_bytes(remote.to_bytes()),
                    RemoteRegion.from_json(remote.to_json()),
                    RemoteRegion.from_json(json.dumps(json.loads(remote.to_json()))),
                ]
                assert all(copy == remote for copy in copies)
                into = np.zeros((4, 8), np.uint8)
                requests = [Read(copy, row) for copy, row in zip(copies, into)]
                engine.submit(requests).wait(WAIT)
                assert (into == number).all()
                engine.submit([Write(into[0], copies[1])]).wait(WAIT)

        with ThreadPoolExecutor(THREADS) as threads:
            for each in [threads.submit(work, number) for number in range(THREADS)]:
                each.result(2 * WAIT)
        for region in regions:
            region.close()
