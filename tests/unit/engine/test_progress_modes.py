"""progress=: how a caller waits, told by the CPU time that it takes."""

from __future__ import annotations

import socket
import time

import numpy as np
import pytest

from transport import Engine, InvalidUse, Settings
from transport.memory.remote import Owner, RemoteRegion

LONG = 1.0  # seconds: beside it what it costs to begin is nothing, even with a quarter of a core


@pytest.fixture
def silent():
    """The address of somebody who accepts connections and never answers."""
    name = f"tensor-transport-test-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        yield "unix:@" + name


def cpu_of_a_wait(mode, address):
    """Seconds of CPU of a thread that waits for LONG in vain."""
    with (
        Engine(progress=mode) as engine,
        Engine() as other,
        other.register(np.zeros(8, np.uint8)) as region,
    ):
        native = region.remote()._owner.native
        remote = RemoteRegion(Owner.make(b"n" * 16, (address,), native), 0, None, (8,))
        transfer = engine.read(remote, bytearray(8))
        begin = time.thread_time()
        with pytest.raises(TimeoutError):
            transfer.wait(LONG)
        return time.thread_time() - begin


def test_a_long_wait(silent):
    poll, adaptive, event = (cpu_of_a_wait(m, silent) for m in ("poll", "adaptive", "event"))
    assert poll > 5 * adaptive
    assert poll > 5 * event


@pytest.mark.parametrize("mode", ["adaptive", "poll", "event"])
def test_bytes_arrive(mode):
    source = np.arange(1 << 20, dtype=np.uint8)
    with Engine(progress=mode) as near, Engine() as far, far.register(source) as region:
        remote = region.remote()
        for size in (8, 4096, 1 << 20):
            into = np.zeros(size, np.uint8)
            near.read(remote.bytes(0, size), into).wait(60)
            assert (into == source[:size]).all()


def test_other_words_are_refused():
    with pytest.raises(InvalidUse, match="TRANSPORT_PROGRESS"):
        Engine(progress="sometimes")
    assert Settings.from_env({"TRANSPORT_PROGRESS": "poll"}).progress == "poll"
