"""Two wires between two hosts: a transfer uses both, and outlives either."""

from __future__ import annotations

import contextlib
import subprocess
import threading

import numpy as np
import pytest
import rig
from patience import until
from verbs_ways import TWO_HOSTS

from transport.engine.engine import Engine
from transport.testing.contract import FarSide
from transport.testing.servant import pattern

pytestmark = pytest.mark.usefixtures("on_b")

WAIT = 90.0
MIB = 1 << 20
ENDS = (("a", "va2", "10.9.0.1", "rxe_a2"), ("b", "vb2", "10.9.0.2", "rxe_b2"))


def on(host, *command):
    return rig.run(*rig.on(host), *command)


def has_address(host, device):
    folder = f"/sys/class/infiniband/{device}/ports/1/gids"
    shown = subprocess.run(
        [*rig.on(host), "cat", f"{folder}/1"], capture_output=True, text=True, check=False
    )
    return ":ffff:" in shown.stdout


@pytest.fixture
def second_wire(on_b):
    rig.run("ip", "link", "add", "vb2", "type", "veth", "peer", "name", "va2", "netns", "a")
    for host, interface, address, device in ENDS:
        on(host, "ip", "link", "set", interface, "mtu", "4200", "up")
        on(host, "ip", "addr", "add", f"{address}/24", "dev", interface)
        on(host, "rdma", "link", "add", device, "type", "rxe", "netdev", interface)
    for host, _, _, device in ENDS:
        until(lambda host=host, device=device: has_address(host, device), f"{device} is ready")
    yield
    for host, _, _, device in ENDS:
        with contextlib.suppress(subprocess.CalledProcessError):
            on(host, "rdma", "link", "del", device)
    rig.run("ip", "link", "del", "vb2")


class Traffic(threading.Thread):
    """Writes and reads without end; remembers what went wrong."""

    def __init__(self, engine, far):
        super().__init__(daemon=True)
        self.engine, self.remote = engine, far.make("traffic", 8 * MIB)
        self.source, self.into = pattern(1, 8 * MIB), np.zeros(8 * MIB, np.uint8)
        self.stopping, self.count, self.error = False, 0, None
        self.start()

    def run(self):
        try:
            while not self.stopping:
                there = self.engine.write(self.source, self.remote, provider="verbs")
                there.wait(WAIT)
                self.engine.read(self.remote, self.into, provider="verbs").wait(WAIT)
                assert np.array_equal(self.into, self.source)
                self.into[:] = 0
                self.count += 1
        except Exception as error:
            self.error = error

    def goes_on(self):
        goal = self.count + 3
        until(lambda: self.count >= goal or self.error, "transfers go on")
        assert self.error is None

    def finish(self):
        self.stopping = True
        self.join(WAIT)
        assert self.error is None


def lane_states(near, far):
    peer = next(peer for peer in near.peers if peer.incarnation == far.incarnation)
    return {lane.device: lane.state for lane in peer.lanes()}


def rail_state(near, device):
    return next(rail for rail in near.rails() if rail.device == device)


def moved(near, far, device):
    peer = next(peer for peer in near.peers if peer.incarnation == far.incarnation)
    return sum(lane.bytes for lane in peer.lanes() if lane.device == device)


def test_one_of_two_rails_goes_down_and_comes_back(second_wire):
    """cases.md, group I: its unfinished pieces go over the other, and it is used again."""
    with Engine() as near, FarSide(TWO_HOSTS) as far:
        traffic = Traffic(near, far)
        both = {"rxe_b": "ready", "rxe_b2": "ready"}
        until(lambda: lane_states(near, far) == both, "both rails are in use")
        traffic.goes_on()
        assert moved(near, far, "rxe_b") > 0
        assert moved(near, far, "rxe_b2") > 0
        so_far = moved(near, far, "rxe_b2")  # asked first: it grows meanwhile
        first, second = sorted(near.rails(), key=lambda rail: rail.device)
        assert (first.device, first.state, second.state) == ("rxe_b", "up", "up")
        assert (second.name, second.gid, second.gid_kind) == ("rxe_b2:1", "10.9.0.2", "RoCE v2")
        assert (second.link_layer, second.mtu, second.pci) == ("Ethernet", 4096, "")
        assert second.bytes >= so_far
        assert second.queue_pairs == 1
        for _ in range(2):
            rig.run("ip", "link", "set", "vb2", "down")
            until(lambda: lane_states(near, far)["rxe_b2"] != "ready", "the rail is left")
            until(lambda: rail_state(near, "rxe_b2").state == "down", "and known to be down")
            assert "rxe_b2 port 1 went down" in rail_state(near, "rxe_b2").reason
            traffic.goes_on()
            rig.run("ip", "link", "set", "vb2", "up")
            until(lambda: lane_states(near, far) == both, "the rail is used again")
            before = moved(near, far, "rxe_b2")
            traffic.goes_on()
            assert moved(near, far, "rxe_b2") > before
        traffic.finish()


def test_a_device_is_removed(second_wire):
    """`rdma link del` waits for its users: transfers go on until the engine is closed."""
    with Engine() as near, FarSide(TWO_HOSTS) as far:
        traffic = Traffic(near, far)
        both = {"rxe_b": "ready", "rxe_b2": "ready"}
        until(lambda: lane_states(near, far) == both, "both rails are in use")
        traffic.goes_on()
        with subprocess.Popen(["rdma", "link", "del", "rxe_b2"]) as removal:
            traffic.goes_on()
            traffic.finish()
            near.close()
            assert removal.wait(WAIT) == 0
