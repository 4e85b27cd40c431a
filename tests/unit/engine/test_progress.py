"""Awaiting: loops that come and go, several peers, engines that close meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from transport import Engine, InvalidUse, Read, RemoteRegion, StaleRegion, TransferError
from transport.memory.remote import Owner

WAIT = 60.0


@pytest.fixture
def pair():
    with Engine(name="a") as a, Engine(name="b") as b:
        yield a, b


def nobody(remote: RemoteRegion) -> RemoteRegion:
    """A handle whose owner accepts connections and never answers."""
    owner = Owner.make(b"n" * 16, ("unix:@" + SILENT,), remote._owner.native)
    return RemoteRegion(owner, 0, None, remote.shape)


SILENT = f"tensor-transport-test-{time.monotonic_ns()}"


@pytest.fixture
def silent():
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + SILENT)
        listener.listen()
        yield


def test_several_peers_in_one_await():
    with Engine() as mine, Engine() as a, Engine() as b:
        regions = [e.register(np.full(100_000, i, np.uint8)) for i, e in enumerate((a, b))]
        into = np.full((2, 100_000), 9, np.uint8)

        async def main():
            reads = [Read(region.remote(), into[i]) for i, region in enumerate(regions)]
            transfer = await mine.submit(reads)
            assert transfer.status == "ok"
            assert await transfer is transfer

        asyncio.run(main())
        assert (into == [[0], [1]]).all()
        stale = regions[1].remote()
        regions[1].close()

        async def fails():
            await mine.submit([Read(regions[0].remote(), into[0]), Read(stale, into[1])])

        with pytest.raises(StaleRegion):
            asyncio.run(fails())
        regions[0].close()


def test_many_loops_leave_nothing_behind(pair):
    a, b = pair
    with a.register(bytearray(100)) as region:

        async def main():
            await b.read(region.remote(), bytearray(100))

        for _ in range(30):
            asyncio.run(main())
        assert len(b._core.queues._by_loop) <= 2


def test_a_transfer_that_a_dead_loop_watched(pair, silent):
    a, b = pair
    with a.register(bytearray(100)) as region:
        transfer = b.read(nobody(region.remote()), bytearray(100))

        async def impatient():
            task = asyncio.ensure_future(wait(transfer))
            await asyncio.sleep(0.05)
            assert not task.done()  # asyncio.run cancels what is left when the loop ends

        async def wait(transfer):
            await transfer

        asyncio.run(impatient())
        assert transfer.status == "cancelled"

        async def again():
            with pytest.raises(TransferError):
                await transfer

        asyncio.run(again())


def test_two_loops_wait_for_one_pending_transfer(pair, silent):
    a, b = pair
    with a.register(bytearray(100)) as region:
        transfer = b.read(nobody(region.remote()), bytearray(100), deadline=0.3)
        seen = []

        async def wait():
            try:
                await transfer
            except TransferError as error:
                seen.append(type(error).__name__)

        threads = [threading.Thread(target=asyncio.run, args=(wait(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert seen == ["DeadlineExceeded"] * 3


async def ends(transfer):
    with pytest.raises(TransferError):
        await transfer


async def one_turn():
    """Whoever was made a task before has begun to wait."""
    await asyncio.sleep(0)


@pytest.fixture
def never_looks(monkeypatch):
    """Who is not told waits for longer than any test."""
    monkeypatch.setattr("transport.engine.transfer._LOOK", 3600.0)


@pytest.fixture
def stuck(pair, silent):
    """A prepared read whose runs end when they are cancelled."""
    a, b = pair
    with (
        a.register(bytearray(100)) as region,
        b.prepare(Read(nobody(region.remote()), bytearray(100))) as read,
    ):
        yield read


def test_whoever_awaits_a_run_is_told_though_others_try_to_start_it(stuck, never_looks):
    async def main():
        first = asyncio.ensure_future(ends(stuck.start()))
        await one_turn()
        with pytest.raises(InvalidUse, match="under way"):
            await asyncio.to_thread(stuck.run)
        second = asyncio.ensure_future(ends(stuck))
        await one_turn()
        stuck.cancel()
        await asyncio.wait_for(asyncio.gather(first, second), WAIT)

    asyncio.run(main())


def test_the_end_of_a_run_that_comes_late_does_not_pass_for_the_next_ones(stuck, never_looks):
    """The loop hears of the first run's end when the second is awaited already."""

    async def main():
        first = asyncio.ensure_future(is_overtaken(stuck.start()))
        await one_turn()
        stuck.cancel()
        assert stuck.wait_quiet(WAIT)
        second = asyncio.ensure_future(ends(stuck.start()))
        await asyncio.wait_for(first, WAIT)
        assert not second.done()
        stuck.cancel()
        await asyncio.wait_for(second, WAIT)

    async def is_overtaken(transfer):
        await transfer

    asyncio.run(main())


def test_closing_the_engine_wakes_its_loops(silent):
    engine, other = Engine(), Engine()
    region = other.register(bytearray(100))
    remote = nobody(region.remote())

    async def main():
        pending = [asyncio.ensure_future(wait(engine.read(remote, bytearray(100))))]
        pending.append(asyncio.ensure_future(listen()))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(engine.close)
        return await asyncio.wait_for(asyncio.gather(*pending), WAIT)

    async def wait(transfer):
        with pytest.raises(TransferError):
            await transfer
        return "transfer"

    async def listen():
        async for _ in engine.notifications():
            pass
        return "notifications"

    assert asyncio.run(main()) == ["transfer", "notifications"]
    with pytest.raises(InvalidUse):
        engine.read(remote, bytearray(100))
    region.close()
    other.close()


def test_closing_the_engine_on_its_own_loop(silent):
    engine, other = Engine(), Engine()
    region = other.register(bytearray(100))

    async def main():
        transfer = engine.read(nobody(region.remote()), bytearray(100))
        task = asyncio.ensure_future(wait(transfer))
        await asyncio.sleep(0.05)
        engine.close()
        return await asyncio.wait_for(task, WAIT)

    async def wait(transfer):
        try:
            await transfer
        except TransferError:
            return "ended"

    assert asyncio.run(main()) == "ended"
    region.close()
    other.close()
