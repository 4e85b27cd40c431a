"""A network that loses packets, and one that is gone."""

from __future__ import annotations

import contextlib
import time

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
def loss(percent):
    """On what both hosts send."""
    for host, interface in (("a", "va"), ("b", "vb")):
        rig.run(
            *rig.on(host), "tc", "qdisc", "add", "dev", interface, "root", "netem", "loss", percent
        )
    try:
        yield
    finally:
        for host, interface in (("a", "va"), ("b", "vb")):
            rig.run(*rig.on(host), "tc", "qdisc", "del", "dev", interface, "root")


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
        with loss("1%"):
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
