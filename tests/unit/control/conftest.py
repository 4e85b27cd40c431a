"""Planes that are closed, and that leave nothing behind."""

from __future__ import annotations

import contextlib
import time

import pytest
from control_planes import descriptors, open_plane


@pytest.fixture
def plane():
    """Opens planes; see control_planes.open_plane."""
    before = descriptors()
    with contextlib.ExitStack() as stack:
        yield lambda **arguments: stack.enter_context(open_plane(**arguments))
    # Those of a native peer that is never released outlive its engine.
    assert descriptors() <= before


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
