"""Queue pairs that nobody uses are given back to the kernel, at both ends, and come again."""

from __future__ import annotations

import numpy as np
import pytest
import rig
from patience import until
from verbs_ways import TWO_HOSTS

from transport.config import Settings
from transport.engine.engine import Engine
from transport.testing.contract import FarSide
from transport.testing.servant import pattern

pytestmark = pytest.mark.usefixtures("on_b")

WAIT = 60.0
SIZE = 1 << 20


def pairs_there():
    shown = rig.run(*rig.on("a"), "rdma", "resource", "show", "qp")
    return sum(" pid " in line for line in shown.splitlines())


def test_closed_above_a_limit_and_made_again(monkeypatch):
    monkeypatch.setenv("TRANSPORT_VERBS_IDLE_TIME", "0.1")  # the peers', too
    few = Settings.from_env(verbs_idle_qps=1, verbs_qps_per_peer=1)
    source = pattern(1, SIZE)
    with Engine(settings=few) as near, FarSide(TWO_HOSTS) as one, FarSide(TWO_HOSTS) as other:
        handles = [far.make("x", SIZE, seed=2 + n) for n, far in enumerate((one, other))]
        into = np.zeros(SIZE, np.uint8)
        for turn in range(6):
            remote = handles[turn % 2]
            done = near.write(source, remote, notify=b"%d" % turn, provider="verbs").wait(WAIT)
            assert (done.provider, done.path) == ("verbs", "rc")
            assert near.read(remote, into, provider="verbs").wait(WAIT).provider == "verbs"
            assert np.array_equal(into, source)
            far = (one, other)[turn % 2]
            assert far.call("notifications", 1, WAIT) == [(b"%d" % turn, "x")]
            into[:] = 0
            until(lambda: near.rails()[0].queue_pairs == 1, "one is left here")
            until(lambda: rig.resources()["qp"] == 1, "and in the kernel")
            until(lambda: pairs_there() == 1, "and at the peers")
            # Which one, only a machine with time to spare decides: both may rest for long enough.
            lanes = [peer.lanes()[0] for peer in near.peers]
            assert "ready" in {lane.state for lane in lanes}
            assert all(lane.errors == 0 for lane in lanes)
    assert rig.resources()["qp"] == 0
