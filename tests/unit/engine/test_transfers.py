"""Transfers between engines of one process: several peers, notifications, facts."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from transport import Engine, InvalidUse, Read, StaleRegion, TransferError, Write

WAIT = 60.0


@pytest.fixture
def pair():
    with Engine(name="a") as a, Engine(name="b") as b:
        yield a, b


# ------------------------------------------------------------------------------------ several peers
def test_one_transfer_with_several_peers():
    with Engine() as mine, Engine() as a, Engine() as b, Engine() as c:
        arrays = [np.full(10_000, i, np.uint8) for i in range(3)]
        regions = [e.register(x) for e, x in zip((a, b, c), arrays)]
        into = np.zeros((3, 10_000), np.uint8)
        reads = [Read(r.remote(), into[i]) for i, r in enumerate(regions)]
        writes = [Write(np.full(10, 9, np.uint8), r.remote()[:10]) for r in regions]
        transfer = mine.submit([*reads, *writes], notify=b"done").wait(WAIT)
        assert transfer.bytes == 3 * 10_010
        assert transfer.provider == "shm"
        assert [int(row[100]) for row in into] == [0, 1, 2]
        for engine, region, array in zip((a, b, c), regions, arrays):
            note = engine.notifications().wait(WAIT)
            assert (note.payload, note.region) == (b"done", region)
            assert note.peer
            assert note.peer.incarnation == mine.incarnation
            assert (array[:10] == 9).all()
            region.close()


def test_one_bad_part_fails_the_transfer():
    with Engine() as mine, Engine() as a, Engine() as b:
        good, bad = a.register(bytearray(100)), b.register(bytearray(100))
        remote = bad.remote()
        bad.close()
        reads = [Read(good.remote(), bytearray(100)), Read(remote, bytearray(100))]
        transfer = mine.submit(reads)
        with pytest.raises(StaleRegion) as caught:
            transfer.wait(WAIT)
        assert caught.value.transfer is transfer
        assert isinstance(transfer.exception(), TransferError)
        assert transfer.wait_quiet(WAIT)
        assert transfer.status == "stale"
        good.close()


def test_nothing_moves_when_a_request_is_refused(pair):
    a, b = pair
    target = bytearray(10)
    with a.register(target) as region:
        with pytest.raises(InvalidUse):
            b.submit([Write(b"x" * 10, region.remote()), Write(b"x", region.remote())])
        assert target == bytearray(10)


# --------------------------------------------------------------------------- notifications
@pytest.mark.parametrize("notify", ["text", 5, b"x" * 1025])
def test_notifications_that_are_none(pair, notify):
    with pair[0].register(bytearray(1)) as region, pytest.raises(InvalidUse, match="notification"):
        pair[1].write(b"x", region.remote(), notify=notify)


def test_largest_notification_and_other_bytes(pair):
    a, b = pair
    with a.register(bytearray(1)) as region:
        for payload in (b"x" * 1024, bytearray(b"y"), memoryview(b"z")):
            b.write(b"x", region.remote(), notify=payload).wait(WAIT)
            assert a.notifications().wait(WAIT).payload == bytes(payload)


def test_notifications_end_with_the_engine():
    engine = Engine()
    found = []
    thread = threading.Thread(target=lambda: found.extend(engine.notifications()))
    thread.start()
    engine.close()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert found == []


def test_a_notification_of_a_closed_region(pair):
    a, b = pair
    region = a.register(bytearray(1))
    b.write(b"x", region.remote(), notify=b"n").wait(WAIT)
    region.close()
    del region
    note = a.notifications().wait(WAIT)
    assert (note.payload, note.region) == (b"n", None)


# --------------------------------------------------------------------------------------- transfers
def test_transfer_facts(pair):
    a, b = pair
    with a.register(torch.ones(1000)) as region:
        transfer = b.read(region.remote(), torch.zeros(1000))
        transfer.wait(WAIT)
        assert transfer.done
        assert transfer.quiet
        assert transfer.exception() is None
        assert (transfer.provider, transfer.path) == ("shm", "process_vm")
        assert 0 < transfer.elapsed < WAIT
        assert "read of 4000 bytes by shm (process_vm): ok" in repr(transfer)
        assert transfer.wait() is transfer
        assert transfer.wait_quiet(0)


def test_fallback_error_uses_the_first_attached_provider(pair):
    a, b = pair
    with a.register(bytearray(10)) as region:
        transfer = b.read(region.remote(), bytearray(10), fallback="error").wait(WAIT)
        assert transfer.provider == "shm"


def test_tensors_are_released_after_the_transfer(pair):
    a, b = pair
    with a.register(torch.ones(1000)) as region:
        into = torch.zeros(1000)
        storage = weakref.ref(into.untyped_storage())
        transfer = b.read(region.remote(), into)
        del into
        transfer.wait(WAIT)
        gc.collect()
        assert storage() is None
