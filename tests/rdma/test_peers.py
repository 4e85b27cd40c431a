"""A peer dies while others live, and comes back as somebody else."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from verbs_ways import TWO_HOSTS

from transport.config import Settings
from transport.engine.engine import Engine
from transport.errors import PeerLost, StaleRegion, TransferError
from transport.testing.contract import FarSide
from transport.testing.servant import pattern

pytestmark = pytest.mark.usefixtures("on_b")

WAIT = 60.0
MIB = 1 << 20


class Traffic(threading.Thread):
    """Writes to one peer without end; remembers what went wrong."""

    def __init__(self, engine, remote):
        super().__init__(daemon=True)
        self.engine, self.remote = engine, remote
        self.source = np.zeros(remote.nbytes, np.uint8)
        self.stopping, self.count, self.error = False, 0, None
        self.start()

    def run(self):
        while not self.stopping:
            try:
                transfer = self.engine.write(self.source, self.remote).wait(WAIT)
                assert transfer.provider == "verbs"
            except Exception as error:
                self.error = error
                return
            self.count += 1

    def wait_for(self, count):
        end, goal = time.monotonic() + WAIT, self.count + count
        while self.count < goal and self.error is None and time.monotonic() < end:
            time.sleep(0.01)
        assert self.error is None
        assert self.count >= goal


def test_one_dies_the_other_goes_on_and_the_first_returns():
    patient = Settings.from_env(liveness=1000.0)  # its silence alone does not make a peer lost
    with (
        Engine(settings=patient) as near,
        FarSide(TWO_HOSTS) as survivor,
        FarSide(TWO_HOSTS) as doomed,
    ):
        address = next(a for a in doomed.addresses if not a.startswith("unix:"))
        old = doomed.make("x", 4 * MIB)
        goes_on = Traffic(near, survivor.make("x", MIB))
        fails = Traffic(near, old)
        goes_on.wait_for(5)
        fails.wait_for(5)

        doomed.kill()
        fails.join(WAIT)
        assert isinstance(fails.error, PeerLost)
        assert isinstance(fails.error, TransferError)
        assert fails.error.retryable
        goes_on.wait_for(20)

        with FarSide(TWO_HOSTS, listen=address) as returned:
            with pytest.raises(StaleRegion):
                near.write(bytes(4 * MIB), old).wait(WAIT)
            new, into = returned.make("x", MIB, seed=1), np.zeros(MIB, np.uint8)
            assert near.read(new, into).wait(WAIT).provider == "verbs"
            assert np.array_equal(into, pattern(1, MIB))
            goes_on.wait_for(5)
        goes_on.stopping = True
        goes_on.join(WAIT)
        assert goes_on.error is None


def test_a_peer_that_leaves_in_order():
    """Its engine closes; the process lives and opens another."""
    with Engine() as near, FarSide(TWO_HOSTS) as far:
        for seed in range(3):
            remote, into = far.make("x", MIB, seed=seed), np.zeros(MIB, np.uint8)
            carried = near.read(remote, into).wait(WAIT)
            assert carried.provider == "verbs", [peer.explain() for peer in near.peers]
            assert np.array_equal(into, pattern(seed, MIB))
            far.reopen()
            with pytest.raises((PeerLost, StaleRegion)):
                near.read(remote, into).wait(WAIT)


def test_our_own_end_while_transfers_fly():
    """Closing is quick, and memory is not written after it."""
    with FarSide(TWO_HOSTS) as far:
        near = Engine()
        remote, into = far.make("x", 64 * MIB), np.zeros(64 * MIB, np.uint8)
        near.read(remote.bytes(0, MIB), into[:MIB]).wait(WAIT)
        transfers = [near.read(remote, into) for _ in range(4)]
        began = time.monotonic()
        near.close()
        assert time.monotonic() - began < 20.0
        assert all(transfer.done and transfer.quiet for transfer in transfers)
        into[:] = 0
        time.sleep(0.2)
        assert not into.any()
