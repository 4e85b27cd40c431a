"""Rules of the contract: what is prepared once runs any number of times, each time as if new."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from transport.engine.batch import Read, Write
from transport.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidUse,
    PeerLost,
    StaleRegion,
    TransferError,
)
from transport.testing.contract_data import WAIT
from transport.testing.servant import pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.engine.engine import Engine
    from transport.memory.remote import RemoteRegion
    from transport.testing.contract import FarSide, Way

_SHORT = 0.2


class PreparedRules:
    """Restarts, refusals, deadlines, notifications, and what is taken away between two runs."""

    way: Way

    @pytest.mark.parametrize("nbytes", [8, 4097, (1 << 20) + 3])
    def test_each_run_brings_the_bytes_of_its_time(
        self, near: Engine, far: FarSide, nbytes: int
    ) -> None:
        remote = far.make("x", nbytes, seed=1)
        source, into = pattern(0, nbytes), np.zeros(nbytes, np.uint8)
        with near.prepare(Write(source, remote)) as write, near.prepare(Read(remote, into)) as read:
            assert (write.done, write.quiet, write.runs) == (True, True, 0)
            for seed in range(2, 12):
                source[:] = pattern(seed, nbytes)
                assert write.start().wait(WAIT) is write
                assert far.content("x") == source.tobytes()
                assert read.run(WAIT) is read
                assert np.array_equal(into, source)
            assert (write.runs, write.status, write.bytes) == (10, "ok", nbytes)
            assert (read.provider, read.path) == (self.way.provider, self.way.path)
        with pytest.raises(InvalidUse, match="closed"):
            read.start()

    def test_many_runs_of_a_batch(self, near: Engine, far: FarSide) -> None:
        """Blocks that touch on neither side, both ways at once."""
        count, block = 200, 40
        remote = far.make("x", 2 * count * block)
        out, back = np.zeros((count, block), np.uint8), np.zeros((count, block), np.uint8)
        spots = [remote[2 * i * block : (2 * i + 1) * block] for i in range(count)]
        writes = [Write(out[i], spots[i]) for i in reversed(range(count))]
        reads = [Read(spots[i], back[i]) for i in reversed(range(count))]
        with near.prepare(writes) as write, near.prepare(reads) as read:
            for turn in range(100):
                out[:] = turn
                write.run(WAIT)
                read.run(WAIT)
                assert (back == turn).all()

    def test_a_run_that_is_not_over_is_not_started_again(
        self, stuck: tuple[Engine, FarSide, RemoteRegion]
    ) -> None:
        engine, far, remote = stuck
        into = bytearray(1000)
        with engine.prepare(Read(remote, into)) as read:
            read.start()
            for begin in (read.start, read.run):
                with pytest.raises(InvalidUse, match="under way"):
                    begin()
            with pytest.raises(TimeoutError):
                read.wait(0)
            assert read.runs == 1
            far.go_on()
            read.wait(WAIT)
            assert bytes(into) == pattern(1, 1000).tobytes()
            into[:] = bytes(1000)
            read.run(WAIT)
            assert bytes(into) == pattern(1, 1000).tobytes()

    def test_deadline_and_cancel_of_each_run(
        self, stuck: tuple[Engine, FarSide, RemoteRegion]
    ) -> None:
        engine, far, remote = stuck
        into = bytearray(1000)
        with engine.prepare(Read(remote, into), deadline=_SHORT) as read:
            for _ in range(2):
                with pytest.raises(DeadlineExceeded) as caught:
                    read.run(WAIT)
                assert caught.value.transfer is read
                assert read.wait_quiet(WAIT)
                read.start().cancel()
                with pytest.raises((Cancelled, DeadlineExceeded)):
                    read.wait(WAIT)
                assert read.wait_quiet(WAIT)
        far.go_on()
        with engine.prepare(Read(remote, into)) as read:
            read.run(WAIT)
        assert bytes(into) == pattern(1, 1000).tobytes()

    def test_closing_ends_a_run(self, stuck: tuple[Engine, FarSide, RemoteRegion]) -> None:
        engine, _, remote = stuck
        read = engine.prepare(Read(remote, bytearray(1000))).start()
        read.close()
        read.close()
        with pytest.raises(Cancelled):
            read.wait(WAIT)
        assert read.wait_quiet(WAIT)

    def test_each_run_notifies(self, near: Engine, far: FarSide) -> None:
        """More of them than may be unread at a time."""
        remote, word = far.make("x", 8), np.zeros(1, np.int64)
        with near.prepare(Write(word, remote.bytes()), notify=b"again") as write:
            for count in (1, 3, 200):
                far.begin("notifications", count, WAIT)
                for _ in range(count):
                    word += 1
                    write.run(WAIT)
                assert far.answer(WAIT) == [(b"again", "x")] * count
        assert far.content("x") == word.tobytes()

    def test_await_each_run(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 300_000, seed=5)
        into = np.zeros(300_000, np.uint8)

        async def several() -> None:
            for _ in range(5):
                into[:] = 0
                assert await read.start() is read
                assert np.array_equal(into, pattern(5, 300_000))

        with near.prepare(Read(remote, into)) as read:
            asyncio.run(several())
            read.run(WAIT)
            asyncio.run(several())

    def test_threads_may_wait_for_what_one_starts(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 100_000)
        waited, over = [0, 0, 0], threading.Event()

        def wait(index: int) -> None:
            while not over.is_set():
                read.wait(WAIT)
                waited[index] += 1

        with near.prepare(Read(remote, bytearray(100_000))) as read:
            threads = [threading.Thread(target=wait, args=(index,)) for index in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(200):
                read.run(WAIT)
            over.set()
            for thread in threads:
                thread.join(WAIT)
                assert not thread.is_alive()
        assert all(waited)

    def test_a_local_region_that_was_closed(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 100)
        region = near.register(np.zeros(100, np.uint8))
        with near.prepare(Read(remote, region)) as read:
            read.run(WAIT)
            region.close()
            for begin in (read.run, read.start, read.run):
                with pytest.raises(InvalidUse, match="closed"):
                    begin()
            assert read.runs == 1

    def test_runs_in_a_row_until_it_is_closed(self, own: Engine, far: FarSide) -> None:
        """After the first they go another way, which must see all the same what was closed."""
        remote, into = far.make("x", 1000, seed=3), np.zeros(1000, np.uint8)
        with own.prepare(Read(remote, into)) as read, own.prepare(Read(remote, into)) as other:
            for _ in range(300):
                into[:] = 0
                assert read.run() is read
                assert np.array_equal(into, pattern(3, 1000))
            assert (read.runs, read.status, read.quiet) == (300, "ok", True)
            other.run()
            other.close()
            with pytest.raises(InvalidUse, match="prepared transfer is closed"):
                other.run()
            own.close()
            for _ in range(2):
                with pytest.raises(InvalidUse, match="engine is closed"):
                    read.run()
            assert (read.runs, other.runs) == (300, 1)

    def test_threads_that_run_until_the_engine_is_closed(self, own: Engine, far: FarSide) -> None:
        remote, begun = far.make("x", 100_000), threading.Barrier(4)
        refusals: list[BaseException] = []

        def run() -> None:
            with own.prepare(Read(remote, bytearray(100_000))) as read:
                read.run(WAIT)
                begun.wait(WAIT)
                try:
                    while True:
                        read.run()
                except (InvalidUse, PeerLost, TransferError) as error:
                    refusals.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait(WAIT)
        own.close()
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        assert len(refusals) == 3

    def test_a_remote_region_that_was_closed(
        self, own: Engine, fresh: Callable[..., FarSide]
    ) -> None:
        far = fresh()
        with own.prepare(Read(far.make("x", 100), bytearray(100))) as read:
            read.run(WAIT)
            far.call("close_region", "x")
            for _ in range(2):
                with pytest.raises(self.way.stale):
                    read.run(WAIT)
                assert read.wait_quiet(WAIT)

    def test_a_peer_that_was_let_go_is_found_again(self, own: Engine, far: FarSide) -> None:
        remote = far.make("x", 1000, seed=6)
        into = bytearray(1000)
        with own.prepare(Read(remote, into)) as read:
            for _ in range(3):
                into[:] = bytes(1000)
                read.run(WAIT)
                assert bytes(into) == pattern(6, 1000).tobytes()
                next(p for p in own.peers if p.incarnation == far.incarnation).close()

    def test_a_peer_that_died_or_began_a_new_life(
        self, own: Engine, fresh: Callable[..., FarSide]
    ) -> None:
        reborn, doomed = fresh(), fresh()
        reads = [own.prepare(Read(f.make("x", 10), bytearray(10))) for f in (reborn, doomed)]
        for read in reads:
            read.run(WAIT)
        reborn.reopen()
        doomed.kill()
        for read in reads:
            for _ in range(2):
                with pytest.raises((PeerLost, StaleRegion)):
                    read.run(WAIT)
                assert read.wait_quiet(WAIT)
            read.close()

    def test_what_is_refused_is_refused_when_it_is_prepared(
        self, near: Engine, far: FarSide
    ) -> None:
        remote = far.make("x", 10)
        for wrong in (Read(remote, bytearray(9)), [Write(bytes(10), remote), 3]):
            with pytest.raises(InvalidUse):
                near.prepare(wrong)  # type: ignore[arg-type]
