"""Planes that are closed, and that leave nothing behind."""

from __future__ import annotations

import time

import control_fakes
import pytest


@pytest.fixture
def plane():
    """Makes planes over fake native engines; see control_fakes.make_plane."""
    made = []

    def make(**arguments):
        made.append(control_fakes.make_plane(**arguments))
        return made[-1]

    yield make
    for one in made:
        one.plane.close()
        one.border.close()
        assert all(peer.released for peer in one.border.peers)


@pytest.fixture
def eventually():
    """Waits until something is true; the condition's last value is returned."""

    def wait(condition, seconds=5.0):
        end = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < end, "it never became true"
            time.sleep(0.002)
        return value

    return wait
