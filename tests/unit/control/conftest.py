"""Planes that are closed, and that leave nothing behind."""

from __future__ import annotations

import contextlib
import time

import pytest
from control_planes import descriptors, open_plane
from patience import until
from relay import Relay, wait_up


@pytest.fixture
def plane():
    """Opens planes; see control_planes.open_plane."""
    before = descriptors()
    with contextlib.ExitStack() as stack:
        yield lambda **arguments: stack.enter_context(open_plane(**arguments))
    # Those of a native peer that is never released outlive its engine.
    end = time.monotonic() + 60
    while descriptors() > before and time.monotonic() < end:
        time.sleep(0.002)
    assert descriptors() <= before


@pytest.fixture
def eventually():
    return until


@pytest.fixture
def relayed(plane):
    """Two planes, the one's record of the other, and the network between them."""
    a, b = plane(providers=("tcp",)), plane(listen="127.0.0.1:0")
    with Relay(b.plane.addresses[1]) as relay:
        yield a, b, wait_up(a.plane.peer(b.incarnation, [relay.address])), relay


@pytest.fixture
def pair(plane):
    a, b = plane(), plane()
    return a, b, wait_up(a.plane.peer(b.incarnation, b.plane.addresses))
