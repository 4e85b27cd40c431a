"""Which wires the bytes take: several rails, several queue pairs on one, rails of IPv6 only."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
import rig
from patience import until
from verbs_ways import TWO_HOSTS

from transport.config import Settings
from transport.engine.engine import Engine
from transport.testing.contract import FarSide
from transport.testing.servant import pattern

# One of these once stood for minutes, and nothing told why: each ends, with what both ends say.
pytestmark = [pytest.mark.usefixtures("on_b"), pytest.mark.timeout(150)]

WAIT = 30.0
MIB = 1 << 20
SIZE = 16 * MIB + 5


def sent(host, interface):
    """Bytes that the interface has sent."""
    path = f"/sys/class/net/{interface}/statistics/tx_bytes"
    return int(rig.run(*rig.on(host), "cat", path))


def far_with(**environment):
    names = {f"TRANSPORT_{name}": value for name, value in environment.items()}
    return FarSide(dataclasses.replace(TWO_HOSTS, environment=names))


_STATE = """
result = [(peer.name, peer.explain(), peer.lanes()) for peer in servant.engine.peers]
"""


@contextlib.contextmanager
def evidence(near, far):
    """Prints what both ends and the kernel know when something inside fails or stands."""
    try:
        yield
    except BaseException:  # pytest-timeout's is no Exception
        for peer in near.peers:
            print("near:", peer.name, peer.explain(), peer.lanes(), peer.counters(), sep="\n  ")
        for host in "ab":
            print(host, rig.run(*rig.on(host), "rdma", "resource", "show", "qp"))
        far.begin("run", _STATE)
        print("far:", far.answer(10.0))
        raise


def move_both_ways(near, far):
    remote, source, into = far.make("x", SIZE), pattern(1, SIZE), np.zeros(SIZE, np.uint8)
    with evidence(near, far):
        there = near.write(source, remote, notify=b"all of it", deadline=WAIT).wait()
        assert far.call("notifications", 1, WAIT) == [(b"all of it", "x")]
        assert far.content("x") == source.tobytes()
        back = near.read(remote, into, deadline=WAIT).wait()
        assert np.array_equal(into, source)
        assert there.provider == back.provider == "verbs"


@pytest.fixture
def two_wires():
    with rig.second_wire("10.8.2."):
        yield


def test_pieces_go_over_both_rails(two_wires):
    with Engine() as near, FarSide(TWO_HOSTS) as far:
        move_both_ways(near, far)  # the first bytes go over the lane that opens first
        with evidence(near, far):
            until(lambda: all(lane.state == "ready" for lane in near.peers[0].lanes()), "lanes")
        before = {(h, i): sent(h, f"v{h}{i}") for h in "ab" for i in ("", "2")}
        move_both_ways(near, far)
        assert rig.resources()["qp"] == 2
        for (host, wire), count in before.items():
            assert sent(host, f"v{host}{wire}") - count > SIZE // 5


def test_several_queue_pairs_on_one_rail():
    settings = Settings.from_env(verbs_qps_per_peer=4)
    with Engine(settings=settings) as near, far_with(VERBS_QPS_PER_PEER="3") as far:
        move_both_ways(near, far)
        assert rig.resources()["qp"] == 3


def test_addresses_of_ipv6_only():
    """A2, A3: the rail has no IPv4 address; its global one is taken, not the link-local."""
    with rig.second_wire("fd00:8::"):
        settings = Settings.from_env(verbs_devices=("rxe_b2",))
        with Engine(settings=settings) as near, far_with(VERBS_DEVICES="rxe_a2") as far:
            before = sent("b", "vb2")
            move_both_ways(near, far)
            assert sent("b", "vb2") - before > SIZE
