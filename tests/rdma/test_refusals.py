"""What the NIC refuses moves no byte and fails no other transfer; and all goes on by RDMA.

A refusal ends the queue pair, as the InfiniBand specification has it: it is made anew at once.
"""

from __future__ import annotations

import numpy as np
import pytest
from verbs_ways import TWO_HOSTS

from transport.engine.engine import Engine
from transport.errors import RemoteAccessError, StaleRegion
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
    """By RDMA in both directions."""
    other, into = far.make("other", MIB, seed=3), np.zeros(MIB, np.uint8)
    assert near.read(other, into).wait(WAIT).provider == "verbs"
    assert np.array_equal(into, pattern(3, MIB))
    with near.register(np.zeros(100, np.uint8)) as region:
        far.call(
            "run",
            "result = servant.engine.write(bytes(100), r, notify=b'n').wait(9).provider",
            r=region.remote(),
        )
        assert near.notifications().wait(WAIT).payload == b"n"
    peer = next(peer for peer in near.peers if peer.incarnation == far.incarnation)
    lanes = [line for line in peer.explain(other) if line.startswith("verbs lane")]
    assert lanes
    assert all(": ready, " in line for line in lanes)


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
    for _ in range(3):
        with pytest.raises(StaleRegion, match="region was closed"):
            near.read(remote, into).wait(WAIT)
    assert not into.any()
    check_that_all_goes_on(near, far)


def test_one_stale_access_among_64(near, far):
    """It alone fails, as what it is; the others do not even notice (cases.md, I)."""
    good, gone = far.make("good", MIB), far.make("gone", MIB)
    source = pattern(4, MIB)
    near.write(source, good).wait(WAIT)
    far.call("close_region", "gone")
    transfers = [near.write(source, gone if i == 10 else good) for i in range(64)]
    for number, transfer in enumerate(transfers):
        assert transfer.wait_quiet(WAIT)
        assert transfer.status == ("stale" if number == 10 else "ok"), number
        assert transfer.provider == "verbs"
    assert far.content("good") == source.tobytes()
    check_that_all_goes_on(near, far)


def test_neighbours_on_the_same_queue_pair(near, far):
    """A refusal of another kind: those before it and those after it succeed."""
    good, bad = far.make("good", MIB), forged(far.make("bad", MIB, access="read"), access=3)
    source = pattern(4, MIB)
    near.write(source, good).wait(WAIT)
    transfers = [near.write(source, bad if i == 10 else good) for i in range(30)]
    for number, transfer in enumerate(transfers):
        assert transfer.wait_quiet(WAIT)
        assert transfer.status == ("remote_access" if number == 10 else "ok"), number
    assert far.content("good") == source.tobytes()
    assert far.content("bad") == pattern(0, MIB).tobytes()
    check_that_all_goes_on(near, far)
