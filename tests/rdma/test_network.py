"""A network that loses packets, and one that is gone."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import rig
from verbs_ways import TWO_HOSTS

from transport.config import Settings
from transport.engine.engine import Engine
from transport.errors import TransportError
from transport.testing.contract import FarSide
from transport.testing.servant import pattern

pytestmark = pytest.mark.usefixtures("on_b")

WAIT = 60.0
MIB = 1 << 20


@contextlib.contextmanager
def link_down():
    rig.run("ip", "link", "set", "vb", "down")
    try:
        yield
    finally:
        rig.run("ip", "link", "set", "vb", "up")


def test_packet_loss():
    with Engine() as near, FarSide(TWO_HOSTS) as far:
        remote, source, into = (
            far.make("x", 4 * MIB),
            pattern(1, 4 * MIB),
            np.zeros(4 * MIB, np.uint8),
        )
        near.write(bytes(4 * MIB), remote).wait(WAIT)
        with rig.netem("loss", "1%"):
            there = near.write(source, remote, notify=b"there", deadline=WAIT).wait()
            back = near.read(remote, into, deadline=WAIT).wait()
            assert far.call("notifications", 1, WAIT) == [(b"there", "x")]
        assert there.provider == back.provider == "verbs"
        assert np.array_equal(into, source)


def test_the_link_goes_down_and_comes_back():
    """Shorter than the recovery time: nobody notices but by the wait."""
    settings = Settings.from_env(verbs_retry_count=1, verbs_timeout=10)
    with Engine(settings=settings) as near, FarSide(TWO_HOSTS) as far:
        remote, into = far.make("x", MIB, seed=2), np.zeros(MIB, np.uint8)
        near.read(remote, into).wait(WAIT)
        into[:] = 0
        with link_down():
            transfers = [near.read(remote, into, provider="verbs") for _ in range(8)]
            time.sleep(1.0)
        for transfer in transfers:
            assert transfer.wait(WAIT).provider == "verbs"
        assert np.array_equal(into, pattern(2, MIB))


def test_the_link_stays_down():
    """With the stream gone, too, the peer is lost; until then nothing fails without a reason."""
    settings = Settings.from_env(liveness=2.0)
    with Engine(settings=settings) as near, FarSide(TWO_HOSTS) as far:
        remote, into = far.make("x", MIB, seed=2), np.zeros(MIB, np.uint8)
        near.read(remote, into).wait(WAIT)
        with link_down():
            began = time.monotonic()
            transfer = near.read(remote, into)
            with pytest.raises(TransportError, match=r"no queue pair|retry counter|silent"):
                transfer.wait(WAIT)
            assert time.monotonic() - began < 20.0
            assert transfer.wait_quiet(WAIT)
        into[:] = 0
        end = time.monotonic() + WAIT
        while True:  # the other side may still believe in the old connection
            try:
                transfer = near.read(remote, into).wait(WAIT)
                break
            except TransportError:
                assert time.monotonic() < end
                time.sleep(0.2)
        assert np.array_equal(into, pattern(2, MIB))


def test_delay_and_jitter():
    """Packets take 2 to 8 ms and so overtake each other; all is correct, and nothing hangs."""
    with Engine() as near, FarSide(TWO_HOSTS) as far:
        remote, source, into = far.make("x", MIB), pattern(3, MIB), np.zeros(MIB, np.uint8)
        near.write(bytes(MIB), remote).wait(WAIT)
        with rig.netem("delay", "5ms", "3ms"):
            for _ in range(4):
                there = near.write(source, remote, notify=b"there", deadline=WAIT).wait()
            back = near.read(remote, into, deadline=WAIT).wait()
            assert len(far.call("notifications", 4, WAIT)) == 4
        assert there.provider == back.provider == "verbs"
        assert np.array_equal(into, source)


@pytest.mark.parametrize("host", ["a", "b"])
def test_ports_of_different_mtu(host):
    """A10: the path MTU is the smaller of both ends', whichever that is."""
    with rig.mtu(host, f"v{host}", 1500), Engine() as near, FarSide(TWO_HOSTS) as far:
        remote, source, into = far.make("x", MIB), pattern(4, MIB), np.zeros(MIB, np.uint8)
        there = near.write(source, remote).wait(WAIT)
        back = near.read(remote, into).wait(WAIT)
        assert there.provider == back.provider == "verbs"
        assert np.array_equal(into, source)


def test_the_control_channel_arrives_and_the_data_does_not():
    """A12: what fails says which of the two works; where TCP is allowed, it carries the bytes."""
    settings = Settings.from_env(verbs_recovery=2.0, verbs_timeout=8, verbs_retry_count=1)
    with (
        rig.second_wire("10.8.2.", rxe=False),
        Engine(settings=settings) as near,
        FarSide(TWO_HOSTS, listen="10.8.2.1:0") as far,
    ):
        remote, into = far.make("x", MIB, seed=5), np.zeros(MIB, np.uint8)
        with rig.netem("loss", "100%"):
            with pytest.raises(TransportError, match="the control channel does"):
                near.read(remote, into, provider="verbs").wait(WAIT)
            assert near.read(remote, into).wait(WAIT).provider == "tcp"
        assert np.array_equal(into, pattern(5, MIB))


def test_many_threads_and_both_ends_connect_at_once():
    """16 threads want one peer that nobody has reached, and it wants us: one link serves all."""
    with Engine(listen="10.8.0.2:0") as near, FarSide(TWO_HOSTS) as far:
        remote = far.make("x", MIB, seed=6)
        mine = np.zeros(16, np.uint8)
        with near.register(mine) as region:
            far.begin("run", _MANY, remote=region.remote())
            with ThreadPoolExecutor(16) as pool:
                buffers = [np.zeros(MIB, np.uint8) for _ in range(16)]
                for done in [pool.submit(near.read, remote, into) for into in buffers]:
                    assert done.result(WAIT).wait(WAIT).provider == "verbs"
            assert far.answer() == ["verbs"] * 16
        assert all(np.array_equal(into, pattern(6, MIB)) for into in buffers)
        assert mine.tolist() == list(range(1, 17))
        assert len(near.peers) == 1
        assert rig.resources()["qp"] == 1


_MANY = """
import threading
found = [None] * 16
def work(i):
    part = remote.bytes(i, i + 1)
    found[i] = servant.engine.write(bytes([i + 1]), part).wait(60).provider
threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
result = found
"""
