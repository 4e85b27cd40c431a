"""The bytes arrive by RDMA: what the contract's rules are too small to show."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from verbs_ways import TWO_HOSTS

from transport.engine.batch import Read, Write
from transport.engine.engine import Engine
from transport.testing.contract import FarSide
from transport.testing.servant import pattern

pytestmark = pytest.mark.usefixtures("on_b")

WAIT = 60.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def near(on_b):
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def far(on_b):
    with FarSide(TWO_HOSTS) as process:
        yield process


def carried(transfer):
    return transfer.provider, transfer.path


def peer_of(near, far):
    return next(peer for peer in near.peers if peer.incarnation == far.incarnation)


def test_thousands_of_scattered_blocks(near, far):
    count, size = 4000, 4096
    remote = far.make("x", count * size)
    source = pattern(1, count * size).reshape(count, size)
    order = np.random.default_rng(2).permutation(count)
    blocks = remote.bytes()
    writes = [Write(source[k], blocks[i * size : (i + 1) * size]) for k, i in enumerate(order)]
    there = near.submit(writes, notify=b"all there").wait(WAIT)
    assert far.call("notifications", 1, WAIT) == [(b"all there", "x")]
    expected = np.empty_like(source)
    expected[order] = source
    assert far.content("x") == expected.tobytes()

    into = np.zeros_like(source)
    reads = [Read(blocks[i * size : (i + 1) * size], into[k]) for k, i in enumerate(order)]
    back = near.submit(reads).wait(WAIT)
    assert np.array_equal(into, source)
    assert carried(there) == carried(back) == ("verbs", "rc")


def test_a_block_of_columns(near, far):
    """2000 rows of 1 KiB out of rows of 4 KiB, on both sides."""
    base = pattern(3, 2000 * 4096).view(np.float32).reshape(2000, 1024)
    remote = far.make("x", base.nbytes, seed=4, shape=base.shape, dtype="float32")
    transfer = near.write(base[:, 256:512], remote[:, 700:956]).wait(WAIT)
    assert carried(transfer) == ("verbs", "rc")
    into = np.zeros((2000, 2048), np.float32)
    near.read(remote[:, 700:956], into[:, 1::8]).wait(WAIT)
    assert into[:, 1::8].tobytes() == base[:, 256:512].tobytes()
    assert not into[:, ::8].any()


def test_64_mib(near, far):
    remote, source = far.make("x", 64 * MIB), pattern(5, 64 * MIB)
    there = near.write(source, remote).wait(WAIT)
    into = np.zeros_like(source)
    back = near.read(remote, into).wait(WAIT)
    assert np.array_equal(into, source)
    assert carried(there) == carried(back) == ("verbs", "rc")


@pytest.mark.parametrize("length", [0, 48, 49, 1024])
def test_notifications_of_every_size(near, far, length):
    """The bounds are the inline limit less the header, and the largest that is allowed."""
    remote, payload = far.make("x", 100), bytes(pattern(6, length))
    assert carried(near.write(bytes(100), remote, notify=payload).wait(WAIT)) == ("verbs", "rc")
    assert far.call("notifications", 1, WAIT) == [(payload, "x")]


def test_both_ends_write_at_once(near, far):
    theirs, ours = far.make("x", 16 * MIB), np.zeros(16 * MIB, np.uint8)
    source = pattern(7, 16 * MIB)
    with near.register(ours) as region:
        far.begin("run", _WRITES, remote=region.remote())
        transfers = [near.write(source, theirs) for _ in range(4)]
        for transfer in transfers:
            transfer.wait(WAIT)
        assert far.answer(WAIT) == ("verbs", "rc")
    assert np.array_equal(ours, pattern(8, 16 * MIB))
    assert far.content("x") == source.tobytes()


_WRITES = """
from transport.testing.servant import pattern
source = pattern(8, 16 << 20)
transfers = [servant.engine.write(source, remote) for _ in range(4)]
for transfer in transfers:
    transfer.wait(60)
result = transfer.provider, transfer.path
"""


def test_a_stopped_owner_is_read_and_written(near, far):
    """One-sided: not a single thread of the owner runs meanwhile."""
    remote, source = far.make("x", 4 * MIB), pattern(9, 4 * MIB)
    near.write(bytes(4 * MIB), remote).wait(WAIT)
    far.stop()
    try:
        near.write(source, remote).wait(WAIT)
        into = np.zeros_like(source)
        assert carried(near.read(remote, into).wait(WAIT)) == ("verbs", "rc")
    finally:
        far.go_on()
    assert np.array_equal(into, source)
    assert far.content("x") == source.tobytes()


def test_mixed_sizes_from_many_threads(near, far):
    """Small ones must not wait for big ones, and all arrive."""
    sizes = [100, 4096, 70_000, 3 * MIB]
    remotes = [far.make(f"t{i}", size, seed=i) for i, size in enumerate(sizes)]
    expected = [pattern(i, size) for i, size in enumerate(sizes)]

    def work(number):
        for turn in range(20):
            which = (number + turn) % len(sizes)
            into = np.zeros(sizes[which], np.uint8)
            assert carried(near.read(remotes[which], into).wait(WAIT)) == ("verbs", "rc")
            assert np.array_equal(into, expected[which])

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, number) for number in range(6)]:
            done.result(WAIT)


def test_a_small_one_overtakes_a_big_one(near, far):
    big, small = far.make("big", 64 * MIB), far.make("small", 64)
    source = np.zeros(64 * MIB, np.uint8)
    near.write(source, big).wait(WAIT)

    def overtakes():
        slow = near.write(source, big)
        near.write(bytes(64), small).wait(WAIT)
        overtaken = not slow.done
        slow.wait(WAIT)
        return overtaken

    # A busy machine may let the big one end before this thread looks, but not each time.
    assert any(overtakes() for _ in range(5))


def test_the_stream_stays_usable_beside_it(near, far):
    remote = far.make("x", 1000, seed=10)
    into = bytearray(1000)
    assert near.read(remote, into, provider="tcp").wait(WAIT).provider == "tcp"
    assert bytes(into) == pattern(10, 1000).tobytes()


def test_nothing_was_carried_by_the_stream_unasked(near, far):
    before = peer_of(near, far).counters()
    remote, source = far.make("x", MIB), pattern(11, MIB)
    for _ in range(10):
        near.write(source, remote, notify=b"").wait(WAIT)
    assert len(far.call("notifications", 10, WAIT)) == 10
    after = peer_of(near, far).counters()
    grown = {name: after[name]["bytes"] - before[name]["bytes"] for name in ("verbs", "tcp")}
    assert grown == {"verbs": 10 * MIB, "tcp": 0}


def test_waiting_costs_no_processor_time(near, far):
    """Both ends sleep while nothing moves."""
    far.make("x", 100)
    began, used = time.monotonic(), time.process_time()
    with pytest.raises(TimeoutError):
        near.notifications().wait(1.0)
    assert time.process_time() - used < 0.3 * (time.monotonic() - began)


def test_local_memory_is_registered_once(near, far):
    remote, source = far.make("x", MIB), pattern(12, MIB)
    cache = near._core.cache
    near.write(source, remote).wait(WAIT)
    misses = cache.misses
    for start in itertools.islice(range(0, MIB, 4096), 50):
        near.write(source[start : start + 4096], remote.bytes(start, start + 4096)).wait(WAIT)
    assert cache.misses == misses
