"""Garbage collection, threads and endings at the worst moments, in bounded numbers."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from transport import Engine, PeerLost, Read, StaleRegion, TransportError, Write
from transport.testing.processes import PeerProcess
from transport.testing.servant import pattern

WAIT = 60.0


@pytest.fixture
def far():
    with PeerProcess() as process:
        process.call("open")
        yield process


@pytest.mark.parametrize("pool", [True, False])
def test_objects_die_in_every_order(far, pool):
    """Transfers, tensors and regions are dropped at random while a collector runs all the time."""
    nbytes = 300_000
    stop = threading.Event()

    def collect():
        while not stop.is_set():
            gc.collect()
            time.sleep(0.001)

    collector = threading.Thread(target=collect)
    collector.start()
    rng = random.Random(5)
    try:
        with Engine() as engine:
            remote = far.call("make", "x", nbytes, seed=3, pool=pool)
            kept = []
            for _ in range(200):
                into = engine.empty(nbytes, "uint8") if rng.random() < 0.5 else bytearray(nbytes)
                transfer = engine.read(remote, into)
                if rng.random() < 0.3:
                    kept.append((transfer, into))
                elif rng.random() < 0.3:
                    transfer.cancel()
                if rng.random() < 0.1:
                    engine.register(into).close()
            for transfer, into in kept:
                transfer.wait(WAIT)
                assert bytes(into) == pattern(3, nbytes).tobytes()
            del kept, into, transfer
    finally:
        stop.set()
        collector.join()


def test_regions_close_while_a_peer_reads_and_writes_them(far):
    """What a read brings is whole and of one region; nothing lands in what was given back."""
    nbytes = 100_000
    with Engine() as engine:
        tensors = [engine.empty(nbytes, "uint8") for _ in range(4)]
        for number, tensor in enumerate(tensors):
            tensor[:] = number
        regions = [engine.register(tensor) for tensor in tensors]
        far.call("run", "stop = False; servant.arrays['into'] = bytearray(100_000)")
        far.begin("run", _HAMMER, remotes=[region.remote() for region in regions], seconds=1.0)
        time.sleep(0.3)
        for region in regions[:2]:
            region.close()
        for tensor in tensors[:2]:
            tensor[:] = 0xEE
        outcome = far.answer()
        for tensor in tensors[:2]:
            assert (tensor == 0xEE).all()
        assert outcome["stale"] > 0
        assert outcome["ok"] > 0
        assert outcome["wrong"] == 0
        for region in regions[2:]:
            region.close()


_HAMMER = """
import time
import transport
outcome = {"ok": 0, "stale": 0, "wrong": 0}
into = bytearray(100_000)
end = time.monotonic() + seconds
late = end + 60  # a busy machine may need longer to come to both
while time.monotonic() < (end if outcome["ok"] and outcome["stale"] else late):
    for number, remote in enumerate(remotes):
        try:
            if outcome["ok"] % 2:
                servant.engine.write(bytes([number]) * 100_000, remote).wait(60)
            else:
                servant.engine.read(remote, into).wait(60)
                outcome["wrong"] += set(into) != {number}
            outcome["ok"] += 1
        except transport.StaleRegion:
            outcome["stale"] += 1
result = outcome
"""


def test_engines_close_while_threads_use_them(far):
    remote = far.call("make", "x", 100_000, pool=True)
    for _ in range(10):
        engine = Engine()
        engine.read(remote, bytearray(100_000)).wait(WAIT)
        started = threading.Barrier(5)

        def use(engine=engine, started=started):
            started.wait()
            with contextlib.suppress(TransportError):
                while True:
                    engine.read(remote, bytearray(100_000)).wait(WAIT)

        with ThreadPoolExecutor(4) as threads:
            done = [threads.submit(use) for _ in range(4)]
            started.wait()
            time.sleep(0.02)
            engine.close()
            for future in done:
                future.result(WAIT)


def test_many_peers_come_and_go():
    with Engine() as engine, contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(PeerProcess()) for _ in range(6)]
        for process in crowd:
            process.begin("open")
        for process in crowd:
            process.answer()
        remotes = [p.call("make", "x", 50_000, seed=i) for i, p in enumerate(crowd)]
        into = np.zeros((6, 50_000), np.uint8)
        engine.submit([Read(r, into[i]) for i, r in enumerate(remotes)]).wait(WAIT)
        for i in range(6):
            assert np.array_equal(into[i], pattern(i, 50_000))
        for process in crowd[:3]:
            process.kill()
        for number, remote in enumerate(remotes):
            if number < 3:
                with pytest.raises((PeerLost, StaleRegion)):
                    engine.read(remote, bytearray(50_000)).wait(WAIT)
            else:
                engine.read(remote, bytearray(50_000)).wait(WAIT)
        transfer = engine.submit([Write(bytes(50_000), remote) for remote in remotes])
        with pytest.raises((PeerLost, StaleRegion)):
            transfer.wait(WAIT)
        assert transfer.wait_quiet(WAIT)


def test_a_hundred_thousand_requests(far):
    count, size = 100_000, 64
    remote = far.call("make", "x", count * size, pool=True)
    into = np.zeros((count, size), np.uint8)
    with Engine() as engine:
        requests = [
            Read(remote.bytes(i * size, (i + 1) * size), into[count - 1 - i]) for i in range(count)
        ]
        engine.submit(requests, deadline=4 * WAIT).wait(4 * WAIT)
    assert np.array_equal(into[::-1].reshape(-1), pattern(0, count * size))
