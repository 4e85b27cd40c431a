"""Rules of the contract: all ways to wait, from all kinds of places."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from transport.errors import Cancelled, DeadlineExceeded, InvalidUse
from transport.testing.contract_data import WAIT, promptly
from transport.testing.servant import pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.engine.engine import Engine
    from transport.engine.transfer import Transfer
    from transport.memory.remote import RemoteRegion
    from transport.testing.contract import FarSide, Way

_SHORT = 0.2


class WaitingRules:
    """Blocking, asyncio, threads, deadlines, cancelling, busy owners."""

    way: Way

    @pytest.fixture
    def stuck(
        self, own: Engine, fresh: Callable[..., FarSide]
    ) -> tuple[Engine, FarSide, RemoteRegion]:
        """An owner that was stopped before we ever spoke to it: its transfers stay pending."""
        far = fresh()
        remote = far.make("x", 1000, seed=1)
        far.stop()
        return own, far, remote

    def test_wait_that_expires_leaves_the_transfer_alive(
        self, stuck: tuple[Engine, FarSide, RemoteRegion]
    ) -> None:
        engine, far, remote = stuck
        into = bytearray(1000)
        transfer = engine.read(remote, into)

        def expire() -> float:
            began = time.monotonic()
            with pytest.raises(TimeoutError) as caught:
                transfer.wait(_SHORT)
            assert not isinstance(caught.value, DeadlineExceeded)
            return time.monotonic() - began

        assert promptly(_SHORT + 1, expire) >= _SHORT
        assert not transfer.done
        far.go_on()
        transfer.wait(WAIT)
        assert bytes(into) == pattern(1, 1000).tobytes()

    def test_deadline(self, stuck: tuple[Engine, FarSide, RemoteRegion]) -> None:
        engine, _, remote = stuck

        def miss() -> float:
            began = time.monotonic()
            transfer = engine.read(remote, bytearray(1000), deadline=_SHORT)
            with pytest.raises(DeadlineExceeded) as caught:
                transfer.wait(WAIT)
            took = time.monotonic() - began
            assert caught.value.transfer is transfer
            assert transfer.wait_quiet(WAIT)
            assert transfer.status == "deadline"
            return took

        promptly(_SHORT + 1, miss)

    def test_cancel(self, stuck: tuple[Engine, FarSide, RemoteRegion]) -> None:
        engine, far, remote = stuck
        into = bytearray(1000)
        transfer = engine.read(remote, into)
        transfer.cancel()
        transfer.cancel()
        with pytest.raises(Cancelled):
            transfer.wait(WAIT)
        assert transfer.wait_quiet(WAIT)
        far.go_on()
        engine.read(remote, into).wait(WAIT)

    def test_cancel_after_the_end_changes_nothing(self, near: Engine, far: FarSide) -> None:
        transfer = near.read(far.make("x", 100), bytearray(100)).wait(WAIT)
        transfer.cancel()
        assert transfer.wait(0).status == "ok"

    def test_ctrl_c_interrupts_wait(self, stuck: tuple[Engine, FarSide, RemoteRegion]) -> None:
        engine, _, remote = stuck
        transfer = engine.read(remote, bytearray(1000))

        def interrupt() -> float:
            began = time.monotonic()
            timer = threading.Timer(_SHORT, signal.raise_signal, [signal.SIGINT])
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012
                timer.start()
                transfer.wait(WAIT)
                timer.join()  # the signal may have come a step later
            took = time.monotonic() - began
            timer.join()
            return took

        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            promptly(_SHORT + 1, interrupt)
        finally:
            signal.signal(signal.SIGINT, previous)
        assert not transfer.done

    def test_await(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 2 << 20, seed=2)

        async def many() -> None:
            arrays = [np.zeros(2 << 20, np.uint8) for _ in range(20)]
            await asyncio.gather(*(near.read(remote, array) for array in arrays))
            for array in arrays:
                assert np.array_equal(array, pattern(2, 2 << 20))

        asyncio.run(many())
        asyncio.run(many())

    def test_await_the_same_transfer_from_several_places(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 8 << 20, seed=3)
        transfer = near.read(remote, bytearray(8 << 20))

        async def both() -> None:
            await asyncio.gather(_wait(transfer), _wait(transfer))

        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(asyncio.run, both()) for _ in range(3)]:
                done.result(WAIT)
        assert transfer.wait(WAIT).status == "ok"

    def test_loops_in_threads(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 1 << 20, seed=4)

        async def some() -> None:
            for _ in range(10):
                into = bytearray(1 << 20)
                await near.read(remote, into)
                assert bytes(into) == pattern(4, 1 << 20).tobytes()

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(asyncio.run, some()) for _ in range(4)]:
                done.result(WAIT)

    def test_cancelling_the_task_cancels_the_transfer(
        self, stuck: tuple[Engine, FarSide, RemoteRegion]
    ) -> None:
        engine, _, remote = stuck
        transfer = engine.read(remote, bytearray(1000))

        async def impatient() -> None:
            await asyncio.wait_for(_wait(transfer), _SHORT)

        with pytest.raises(
            TimeoutError if issubclass(asyncio.TimeoutError, TimeoutError) else asyncio.TimeoutError
        ):
            asyncio.run(impatient())
        assert transfer.status == "cancelled"

    def test_threads(self, near: Engine, far: FarSide) -> None:
        """H4"""
        remote = far.make("x", 8 * 100_000, seed=5)
        expected = pattern(5, 8 * 100_000)

        def work(number: int) -> None:
            part = slice(number * 100_000, (number + 1) * 100_000)
            for _ in range(25):
                into = np.zeros(100_000, np.uint8)
                near.read(remote[part], into).wait(WAIT)
                assert np.array_equal(into, expected[part])
                near.write(into, remote[part]).wait(WAIT)

        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(work, number) for number in range(8)]:
                done.result(WAIT)
        assert far.content("x") == expected.tobytes()

    def test_the_owner_need_not_listen(self, near: Engine, far: FarSide) -> None:
        """Its Python is stuck in C with the GIL held; its memory is served all the same."""
        remote = far.make("x", 3 << 20, seed=6)
        near.read(remote, bytearray(3 << 20)).wait(WAIT)
        far.begin("hold_gil", WAIT)
        time.sleep(0.1)  # until it does
        into = bytearray(3 << 20)
        near.read(remote, into).wait(WAIT)
        near.write(into, remote, notify=b"while you slept").wait(WAIT)
        assert far.busy
        assert bytes(into) == pattern(6, 3 << 20).tobytes()
        far.begin("pid")
        far.answer()
        far.answer()
        assert far.call("notifications", 1, WAIT) == [(b"while you slept", "x")]

    def test_async_notifications(self, near: Engine, far: FarSide) -> None:
        with near.register(np.zeros(8, np.uint8)) as region:

            async def listen() -> list[bytes]:
                found: list[bytes] = []
                async for note in near.notifications():
                    found.append(note.payload)
                    if len(found) == 3:
                        break
                return found

            far.begin("run", _NOTIFIES, remote=region.remote())
            assert asyncio.run(asyncio.wait_for(listen(), WAIT)) == [b"0", b"1", b"2"]
            far.answer()
        with pytest.raises(TimeoutError):
            near.notifications().wait(0.01)
        assert near.notifications().poll() is None

    @pytest.mark.parametrize("deadline", [-1, float("nan"), "soon"])
    def test_deadlines_that_are_none(self, near: Engine, far: FarSide, deadline: float) -> None:
        with pytest.raises(InvalidUse):
            near.read(far.make("x", 10), bytearray(10), deadline=deadline)


async def _wait(transfer: Transfer) -> None:
    await transfer


_NOTIFIES = """
for i in range(3):
    servant.engine.write(bytes(8), remote, notify=b"%d" % i).wait(20)
"""
