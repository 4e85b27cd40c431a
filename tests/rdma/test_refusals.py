"""What the NIC refuses moves no byte; what that costs the connection; and that all goes on.

Today a refusal ends the queue pair, as the InfiniBand specification has it, and nothing makes a new
one while the peer stays connected: what follows goes over the stream, visibly, until the peer is
connected anew.
"""

from __future__ import annotations

import numpy as np
import pytest
from verbs_ways import TWO_HOSTS

from transport.engine.engine import Engine
from transport.errors import RemoteAccessError, StaleRegion, Unavailable
from transport.testing.contract import FarSide
from transport.testing.contract_refusals import forged
from transport.testing.servant import pattern

pytestmark = pytest.mark.usefixtures("on_b")

WAIT = 60.0
MIB = 1 << 20


@pytest.fixture
def near(on_b):
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def far(on_b):
    with FarSide(TWO_HOSTS) as process:
        yield process


def check_that_all_goes_on(near, far):
    """Over the stream in both directions; then, connected anew, by RDMA."""
    other, into = far.make("other", MIB, seed=3), np.zeros(MIB, np.uint8)
    assert near.read(other, into).wait(WAIT).provider == "tcp"
    assert np.array_equal(into, pattern(3, MIB))
    with pytest.raises(Unavailable, match=r"out of use since.*refused"):
        near.read(other, into, provider="verbs").wait(WAIT)
    with near.register(np.zeros(100, np.uint8)) as region:
        far.call(
            "run", "servant.engine.write(bytes(100), r, notify=b'n').wait(60)", r=region.remote()
        )
        assert near.notifications().wait(WAIT).payload == b"n"
    peer = next(peer for peer in near.peers if peer.incarnation == far.incarnation)
    assert any("out of use" in line for line in peer.explain(other))
    peer.close()
    into[:] = 0
    assert near.read(other, into).wait(WAIT).provider == "verbs"
    assert np.array_equal(into, pattern(3, MIB))


def test_writing_a_read_only_region(near, far):
    remote = far.make("x", MIB, access="read")
    near.read(remote, np.zeros(MIB, np.uint8)).wait(WAIT)
    with pytest.raises(RemoteAccessError):
        near.write(bytes(MIB), remote)  # the handle says so; nothing is sent
    with pytest.raises(RemoteAccessError, match="remote access error") as caught:
        near.write(bytes(MIB), forged(remote, access=3)).wait(WAIT)
    assert caught.value.transfer.provider == "verbs"
    assert far.content("x") == pattern(0, MIB).tobytes()
    check_that_all_goes_on(near, far)


def test_reading_past_the_end(near, far):
    remote = far.make("x", MIB)
    beyond = forged(remote, length=64 * MIB)
    longer = type(remote)(beyond._owner, 32 * MIB, None, (4096,))
    near.read(remote, np.zeros(MIB, np.uint8)).wait(WAIT)
    into = np.zeros(4096, np.uint8)
    with pytest.raises(RemoteAccessError):
        near.read(longer, into).wait(WAIT)
    assert not into.any()
    check_that_all_goes_on(near, far)


def test_a_closed_region(near, far):
    remote, into = far.make("x", MIB), np.zeros(MIB, np.uint8)
    near.read(remote, into).wait(WAIT)
    far.call("close_region", "x")
    into[:] = 0
    with pytest.raises((StaleRegion, RemoteAccessError)):
        near.read(remote, into).wait(WAIT)
    assert not into.any()
    with pytest.raises(StaleRegion):
        near.read(remote, into).wait(WAIT)  # the stream knows what the NIC did not tell
    check_that_all_goes_on(near, far)


def test_neighbours_on_the_same_queue_pair(near, far):
    """Those before the refusal succeed; those after it end as flushed and can be tried again."""
    good, bad = far.make("good", MIB), forged(far.make("bad", MIB, access="read"), access=3)
    source = pattern(4, MIB)
    near.write(source, good).wait(WAIT)
    transfers = [near.write(source, bad if i == 10 else good) for i in range(30)]
    for transfer in transfers:
        assert transfer.wait_quiet(WAIT)
    statuses = [transfer.status for transfer in transfers]
    assert statuses[10] == "remote_access"
    assert set(statuses[:10]) == {"ok"}
    assert set(statuses[11:]) <= {"ok", "flushed"}
    for transfer in transfers[11:]:
        if transfer.status == "flushed":
            assert "had failed before" in str(transfer.exception())
            near.write(source, good).wait(WAIT)
    assert far.content("good") == source.tobytes()
    assert far.content("bad") == pattern(0, MIB).tobytes()
    check_that_all_goes_on(near, far)
