"""Faults that users of such systems reported: memory and handles that go while they are used."""

from __future__ import annotations

import gc
import hashlib
import os
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from possessions import possessions

from transport import (
    Cancelled,
    DeadlineExceeded,
    Engine,
    InvalidUse,
    Read,
    StaleRegion,
    TransferError,
    TransportError,
    Write,
)
from transport.testing.processes import PeerProcess, run_program
from transport.testing.servant import pattern

WAIT = 60.0
MIB = 1 << 20
WAYS = {"shm": {}, "tcp": {"providers": "tcp", "listen": "127.0.0.1:0"}}
BIG = int(os.environ.get("BIG_BYTES", str(64 * MIB)))


@pytest.fixture(params=WAYS)
def pair(request):
    """Another process, and an engine here that reaches it that way."""
    with PeerProcess() as far, Engine(**WAYS[request.param]) as engine:
        far.call("open", **WAYS[request.param])
        yield far, engine


def _until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.005)
        gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("side", ["local", "remote"])
def test_a_region_is_closed_during_a_large_transfer(pair, side):
    """G1: what was begun ends or is refused; what is given back is written by nobody any more."""
    far, engine = pair
    remote = far.call("make", "x", BIG, seed=1)
    ours = np.zeros(BIG, np.uint8)
    region = engine.register(ours)
    transfer = engine.read(remote, ours)
    if side == "local":
        region.close(WAIT)
    else:
        far.call("close_region", "x")
    assert transfer.wait_quiet(WAIT)
    after = hashlib.sha256(ours).digest()
    error = transfer.exception()
    if error is None:
        assert np.array_equal(ours, pattern(1, BIG))
    else:
        assert side == "remote"
        assert isinstance(error, StaleRegion)
    time.sleep(0.05)
    assert hashlib.sha256(ours).digest() == after
    region.close()
    remote = far.call("make", "y", MIB, seed=2)
    into = np.zeros(MIB, np.uint8)
    engine.read(remote, into).wait(WAIT)
    assert np.array_equal(into, pattern(2, MIB))


@pytest.mark.parametrize("how", ["drop", "cancel", "cancel and drop", "close the engine"])
def test_handles_are_released_while_posted(pair, how):
    """G2: neither crash nor late bytes: the memory lives until the transfer is quiet."""
    far, engine = pair
    nbytes = 4 * MIB
    remote = far.call("make", "x", nbytes, seed=3)
    alive = []
    for _ in range(20):
        into = np.zeros(nbytes, np.uint8)
        alive.append(weakref.ref(into))
        transfer = engine.read(remote, into)
        del into
        if "cancel" in how:
            transfer.cancel()
        if "drop" in how:
            del transfer
    if how == "close the engine":
        engine.close()
        with pytest.raises(TransportError):
            engine.read(remote, bytearray(nbytes))
        return
    into = np.zeros(nbytes, np.uint8)
    engine.read(remote, into).wait(WAIT)
    assert np.array_equal(into, pattern(3, nbytes))
    if how != "cancel":
        _until(lambda: _gone(engine, alive))


def _gone(engine, alive):
    engine.notifications().poll()  # does what finalizers have left
    return not any(each() is not None for each in alive)


def test_finished_handles_hold_nothing(pair):
    """G3, G4: the memory of a transfer is free once it is done, whether it is kept or dropped."""
    far, engine = pair
    remote = far.call("make", "x", 1000)
    kept, alive = [], []
    for number in range(200):
        into = np.zeros(1000, np.uint8)
        alive.append(weakref.ref(into))
        transfer = engine.read(remote, into).wait(WAIT)
        if number % 2:
            kept.append(transfer)
        del into
    del transfer
    _until(lambda: _gone(engine, alive))
    assert all(transfer.status == "ok" for transfer in kept)


def test_failures_leave_nothing_referenced(pair):
    """G4: every way in which a transfer can fail, and the tensors are nobody's but ours again."""
    far, engine = pair
    remotes = [far.call("make", name, 100_000, access=a) for name, a in _ACCESS.items()]
    engine.read(remotes[0], bytearray(100_000)).wait(WAIT)
    far.call("close_region", "closed")
    tensor = torch.zeros(100_000, dtype=torch.uint8)
    alive = [weakref.ref(tensor), weakref.ref(tensor.untyped_storage())]
    for _ in range(5):
        _fail_in_every_way(far, engine, tensor, *remotes)
    del tensor
    _until(lambda: _gone(engine, alive))


_ACCESS = {"good": "read-write", "read only": "read", "closed": "read-write"}


def _fail_in_every_way(far, engine, tensor, good, read_only, closed):
    def fail(error, call):
        with pytest.raises(error):
            call().wait(WAIT)

    fail(StaleRegion, lambda: engine.read(closed, tensor))
    fail(InvalidUse, lambda: engine.submit([Read(good, tensor), Read(good, tensor[:5])]))
    fail(TransferError, lambda: engine.write(tensor, read_only))
    fail(TransferError, lambda: engine.submit([Write(tensor, good), Read(closed, tensor)]))
    far.stop()  # shm serves itself all the same
    late = engine.read(good, tensor, deadline=0.01)
    cancelled = engine.write(tensor, good, notify=b"x" * 10)
    time.sleep(0.02)
    cancelled.cancel()
    far.go_on()
    for transfer, error in ((late, DeadlineExceeded), (cancelled, Cancelled)):
        assert transfer.wait_quiet(WAIT)
        assert isinstance(transfer.exception(), (error, type(None)))


def test_the_temporaries_of_many_writes_live_until_they_are_sent(pair):
    """G6: blocks that are made for one write and dropped at once; their memory is wanted again."""
    far, engine = pair
    nbytes, count = 16 << 10, 4000
    remote = far.call("make", "x", nbytes * count, pool=True)
    transfers = []
    for number in range(count):
        block = torch.full((nbytes,), number % 251, dtype=torch.uint8)
        transfers.append(engine.write(block, remote.bytes(number * nbytes, (number + 1) * nbytes)))
        block = torch.full((nbytes,), 255, dtype=torch.uint8)  # takes its place if it was freed
    for transfer in transfers:
        transfer.wait(WAIT)
    found = np.frombuffer(far.call("content", "x"), np.uint8).reshape(count, nbytes)
    assert (found == (np.arange(count) % 251).astype(np.uint8)[:, None]).all()


def test_mapped_memory_goes_back_when_it_is_closed():
    """G7, of host memory: what a peer mapped and read is no longer held after both let go."""
    with PeerProcess() as far, Engine() as engine:
        far.call("open")
        before = far.call("run", _MAPPINGS)
        for _ in range(10):
            tensor = engine.empty(8 * MIB, "uint8")
            with engine.register(tensor) as region:
                far.call("run", _READS, remote=region.remote())
            del tensor, region
        gc.collect()
        engine.notifications().poll()
        assert engine._core.pool.held_bytes == 0
        engine.close()
        end = time.monotonic() + WAIT
        while far.call("run", _MAPPINGS) > before and time.monotonic() < end:
            time.sleep(0.01)
        assert far.call("run", _MAPPINGS) <= before, "it keeps mappings of a peer that is gone"


_MAPPINGS = """
import gc
gc.collect()
servant.engine.notifications().poll()
result = sum("transport-segment" in line for line in open("/proc/self/maps"))
"""
_READS = """
import numpy as np
into = np.zeros(remote.nbytes, np.uint8)
assert servant.engine.read(remote, into).wait(60).path == "mapped"
"""


@pytest.mark.parametrize("byte", [0x00, 0x5A, 0xA5, 0xFF])
def test_no_content_is_mistaken_for_a_sign(pair, byte):
    """G8: completion never looks into payloads, whatever these are, and adds nothing to them."""
    far, engine = pair
    sizes = [1, 7, 8, 63, 64, 4096, 65_536, 300_001]
    for nbytes in sizes:
        remote = far.call("make", "x", nbytes + 2)
        whole = far.call("content", "x")
        payload, part = bytes([byte]) * nbytes, remote[1 : 1 + nbytes]
        engine.write(payload, part, notify=payload[:1]).wait(WAIT)
        assert far.call("notifications", 1, WAIT) == [(payload[:1], "x")]
        assert far.call("content", "x") == whole[:1] + payload + whole[-1:]
        into = bytearray(b"\x11" * (nbytes + 2))
        engine.read(part, memoryview(into)[1:-1]).wait(WAIT)
        assert bytes(into) == b"\x11" + payload + b"\x11"


def test_opening_and_closing_again_and_again_leaves_nothing():
    """H7: engines with peers and transfers come and go in one process."""
    before = None
    shm = set(Path("/dev/shm").iterdir())
    for _ in range(15):
        with Engine() as one, Engine() as other:
            memory = one.empty(100_000, "uint8")
            with one.register(memory) as region:
                transfers = [other.read(region.remote(), bytearray(100_000)) for _ in range(5)]
                transfers[0].wait(WAIT)
        del memory, region, transfers, one, other
        now = possessions()
        before = before or now
        assert now["descriptors"] <= before["descriptors"], (before, now)
        assert now["threads"] <= before["threads"], (before, now)
    assert set(Path("/dev/shm").iterdir()) <= shm


@pytest.mark.parametrize(
    "end", ["", "sys.exit(3)", "raise RuntimeError('on purpose')", "os._exit(3)"]
)
def test_programs_end_with_transfers_under_way(end):
    """F8: by return, sys.exit, an exception or at once; with daemon threads and forked children."""
    with PeerProcess() as far:
        far.call("open")
        remote = far.call("make", "x", 32 * MIB, pool=False)
        status, out, err = run_program(_ENDS + end, remote.to_json())
        assert out.strip() == "working"
        assert status == (0 if not end else 1 if "raise" in end else 3), err
        lines = [line for line in err.splitlines() if line.strip()]
        assert lines[-1:] == (["RuntimeError: on purpose"] if "raise" in end else [])
        with Engine() as engine:
            engine.read(remote, bytearray(32 * MIB)).wait(WAIT)


_ENDS = """
import os, sys, threading, time
import transport
engine = transport.Engine()
remote = transport.RemoteRegion.from_json(sys.argv[1])
into = bytearray(32 << 20)
engine.read(remote, into).wait(60)

def work():
    try:
        while True:
            engine.read(remote, into).wait(60)
    except transport.TransportError:
        pass

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
kept = [engine.write(into, remote) for _ in range(4)]
if os.fork() == 0:
    time.sleep(0.1)
    sys.exit(0)
os.wait()
print("working", flush=True)
"""
