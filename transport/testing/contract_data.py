"""Rules of the contract: the right bytes are where they belong, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transport.engine.batch import Read, Write
from transport.testing.servant import pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.engine.engine import Engine
    from transport.testing.contract import FarSide, Way

WAIT = 60.0  # seconds; a hang ends as a failure
SIZES = (0, 1, 7, 4097, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, (5 << 20) + 3)
_GUARD = 64  # bytes round a local target that must stay as they are


def promptly(limit: float, attempt: Callable[[], float]) -> float:
    """Asserts that what is measured takes less than `limit` seconds, and tells how long it took.

    A busy machine makes one attempt late; what is late by itself is late in all of them.
    """
    took: list[float] = []
    while not took or took[-1] >= limit:
        assert len(took) < 5, f"it must take less than {limit:g} s, and took {took}"
        took.append(attempt())
    return took[-1]


def guarded(nbytes: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Memory with guards round it, and the part between them."""
    whole = np.full(nbytes + 2 * _GUARD, 0xAA, np.uint8)
    return whole, whole[_GUARD : _GUARD + nbytes]


def untouched(whole: np.ndarray[Any, Any]) -> bool:
    return bool((whole[:_GUARD] == 0xAA).all() and (whole[-_GUARD:] == 0xAA).all())


class DataRules:
    """Sizes, strides, batches, scalars, notifications."""

    way: Way

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_read_brings_the_bytes(self, near: Engine, far: FarSide, nbytes: int) -> None:
        remote = far.make("x", nbytes, seed=nbytes)
        whole, into = guarded(nbytes)
        transfer = near.read(remote, into).wait(WAIT)
        assert into.tobytes() == pattern(nbytes, nbytes).tobytes()
        assert untouched(whole)
        assert transfer.bytes == nbytes
        assert transfer.quiet
        if nbytes:
            assert (transfer.provider, transfer.path) == (self.way.provider, self.way.path)

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_write_brings_the_bytes(self, near: Engine, far: FarSide, nbytes: int) -> None:
        remote = far.make("x", nbytes + 128, seed=1)
        source = pattern(2, nbytes)
        transfer = near.write(source, remote.bytes(64, 64 + nbytes)).wait(WAIT)
        content, before = far.content("x"), pattern(1, nbytes + 128).tobytes()
        assert content[64 : 64 + nbytes] == source.tobytes()
        assert content[:64] == before[:64]
        assert content[64 + nbytes :] == before[64 + nbytes :]
        assert (transfer.provider, transfer.path) == (
            self.way.provider,
            self.way.path,
        ) or not nbytes

    def test_both_ways_again_and_again(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 10_000)
        for seed in range(20):
            source = pattern(seed, 10_000)
            near.write(source, remote).wait(WAIT)
            back = np.empty(10_000, np.uint8)
            near.read(remote, back).wait(WAIT)
            assert np.array_equal(back, source)

    def test_scalar(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 8, shape=(), dtype="float64")
        source, back = np.array(2.5), np.array(0.0)
        near.write(source, remote).wait(WAIT)
        near.read(remote, back).wait(WAIT)
        assert back == 2.5

    @pytest.mark.parametrize("side", ["local", "remote", "both", "transposed"])
    def test_strided(self, near: Engine, far: FarSide, side: str) -> None:
        base = pattern(3, 40 * 48 * 4).view(np.float32).reshape(40, 48)
        remote = far.make("x", base.nbytes, seed=3, shape=(40, 48), dtype="float32")
        into = np.zeros((20, 16), np.float32)
        target = np.zeros((40, 48), np.float32)[10:30, 5:37:2] if side != "remote" else into
        if side == "local":
            near.read(remote, expanded := np.zeros((48, 40), np.float32).T).wait(WAIT)
            assert np.array_equal(expanded.view(np.uint32), base.view(np.uint32))
        elif side == "transposed":
            turned = np.zeros((32, 20), np.float32).T[:, ::2]
            near.read(remote[5:25, 8:40:2], turned).wait(WAIT)
            assert turned.tobytes() == base[5:25, 8:40:2].tobytes()
        else:
            near.read(remote[5:25, 8:40:2], target).wait(WAIT)
            assert target.tobytes() == base[5:25, 8:40:2].tobytes()

    def test_strided_write(self, near: Engine, far: FarSide) -> None:
        expected = pattern(4, 30 * 20 * 8).view(np.int64).reshape(30, 20).copy()
        remote = far.make("x", expected.nbytes, seed=4, shape=(30, 20), dtype="int64")
        source = np.arange(1000, dtype=np.int64).reshape(100, 10)[::-10, :5]
        near.write(source, remote[3:23:2, 10:20:2]).wait(WAIT)
        expected[3:23:2, 10:20:2] = source
        assert far.content("x") == expected.tobytes()

    def test_untyped_bytes_of_typed_memory(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 400, seed=5, shape=(10, 10), dtype="float32")
        buffer = bytearray(400)
        near.read(remote, buffer).wait(WAIT)
        assert bytes(buffer) == pattern(5, 400).tobytes()
        near.write(b"\1\2\3", remote.bytes(1, 4)).wait(WAIT)
        assert far.content("x")[:5] == bytes(buffer[:1]) + b"\1\2\3" + bytes(buffer[4:5])

    def test_a_batch_of_thousands(self, near: Engine, far: FarSide) -> None:
        count, size = 4000, 96
        remote = far.make("x", count * size, seed=6)
        order = np.random.default_rng(0).permutation(count)
        into = np.zeros((count, size), np.uint8)
        reads = [Read(remote[i * size : (i + 1) * size], into[k]) for k, i in enumerate(order)]
        transfer = near.submit(reads).wait(WAIT)
        expected = pattern(6, count * size).reshape(count, size)[order]
        assert np.array_equal(into, expected)
        assert transfer.bytes == count * size

    def test_reads_and_writes_in_one_batch(self, near: Engine, far: FarSide) -> None:
        old, new = far.make("old", 5000, seed=7), far.make("new", 5000, seed=8)
        into, source = np.zeros(5000, np.uint8), pattern(9, 5000)
        near.submit([Read(old, into), Write(source, new)]).wait(WAIT)
        assert np.array_equal(into, pattern(7, 5000))
        assert far.content("new") == source.tobytes()

    def test_an_empty_batch_is_done(self, near: Engine) -> None:
        assert near.submit([]).wait(WAIT).status == "ok"

    def test_notification_comes_after_the_data(self, near: Engine, far: FarSide) -> None:
        nbytes = 3 << 20
        remote = far.make("x", nbytes, seed=10)
        for seed in range(4):
            source = pattern(20 + seed, nbytes)
            far.begin("run", _SEES, seed=20 + seed)
            near.write(source, remote, notify=b"round %d" % seed).wait(WAIT)
            payload, name, same = far.answer(WAIT)
            assert (payload, name) == (b"round %d" % seed, "x")
            assert same

    def test_notifications_are_bounded_and_none_is_lost(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 64)
        source = pattern(11, 64)
        transfers = [near.write(source, remote, notify=b"%d" % i) for i in range(300)]
        found = far.call("notifications", 300, WAIT)
        assert sorted(int(payload) for payload, _ in found) == list(range(300))
        for transfer in transfers:
            transfer.wait(WAIT)

    def test_a_batch_notifies_once(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 1000)
        writes = [Write(pattern(i, 10), remote[i * 10 : i * 10 + 10]) for i in range(100)]
        near.submit(writes, notify=b"").wait(WAIT)
        near.submit([Read(remote, bytearray(1000))], notify=b"read it").wait(WAIT)
        assert far.call("notifications", 2, WAIT) == [(b"", "x"), (b"read it", "x")]

    def test_far_memory_in_threads_of_its_own(self, near: Engine, far: FarSide) -> None:
        """The owner may read here while we read there."""
        mine = pattern(12, 1 << 20)
        with near.register(mine) as region:
            theirs = far.make("x", 1 << 20, seed=13)
            far.begin("read", region.remote(), "x", WAIT)
            into = np.zeros(1 << 20, np.uint8)
            near.read(theirs, into).wait(WAIT)
            far.answer(WAIT)
            assert far.content("x") == mine.tobytes()


_SEES = """
from transport.testing.servant import pattern
note = servant.engine.notifications().wait(20)
names = [name for name, region in servant.regions.items() if region is note.region]
content = servant.content("x")
same = content == pattern(seed, len(content)).tobytes()
result = note.payload, names[0], same
"""
