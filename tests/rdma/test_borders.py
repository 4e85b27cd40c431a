"""Offsets beyond 2^31 and 2^32, through real queue pairs.

A guest has not the memory to pin 4 GiB, and the device pins what is registered. So the owner
registers 2 MiB round each border of a sparse mapping, and the handle is made to begin where the
mapping does: the NIC checks addresses against the registered 2 MiB, and all arithmetic on the way
there is that of a region of 5 GiB. (A whole region of 5 GiB: native/tests/test_verbs_spans.c, over
the double, which pins nothing.)
"""

from __future__ import annotations

import numpy as np
import pytest
from verbs_ways import TWO_HOSTS

from transport.engine.batch import Read, Write
from transport.engine.engine import Engine
from transport.errors import TransferError
from transport.memory.remote import RemoteRegion
from transport.testing.contract import FarSide
from transport.testing.contract_refusals import forged
from transport.testing.servant import pattern

pytestmark = pytest.mark.usefixtures("on_b")

WAIT = 60.0
MIB = 1 << 20
WHOLE = 5 << 30

_REGISTER = """
import mmap
import numpy as np
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
servant.sparse = np.frombuffer(mmap.mmap(-1, whole, flags=flags), np.uint8)
window = servant.sparse[border - (1 << 20) : border + (1 << 20)]
servant.window = servant.engine.register(window)
result = servant.window.remote(), servant.sparse.ctypes.data
"""
_LOOK = "result = servant.sparse[start : start + length].tobytes()"
_CLOSE = "servant.window.close(); del servant.window, servant.sparse"


@pytest.fixture(scope="module")
def ends(on_b):
    with Engine() as near, FarSide(TWO_HOSTS) as far:
        yield near, far


@pytest.mark.parametrize("border", [1 << 31, 1 << 32])
def test_both_sides_of_a_border(ends, border):
    near, far = ends
    window, base = far.call("run", _REGISTER, whole=WHOLE, border=border)
    owner = forged(window, address=base, length=WHOLE)._owner
    remote = RemoteRegion(owner, 0, None, (WHOLE,))
    start = border - MIB
    source, into = pattern(1, 2 * MIB), np.zeros(2 * MIB, np.uint8)
    across = remote[start : start + 2 * MIB]
    there = near.write(source, across, notify=b"there").wait(WAIT)
    assert (there.provider, there.path) == ("verbs", "rc")
    assert far.call("notifications", 1, WAIT)[0][0] == b"there"
    assert far.call("run", _LOOK, start=start, length=2 * MIB) == source.tobytes()
    assert near.read(across, into).wait(WAIT).provider == "verbs"
    assert np.array_equal(into, source)

    places = [border - 100, border, border - 7000, border + 5000, border - MIB]
    blocks = pattern(2, 100 * len(places)).reshape(len(places), 100)
    near.submit(
        [Write(row, remote[at : at + 100]) for row, at in zip(blocks, places, strict=True)]
    ).wait(WAIT)
    back = np.zeros_like(blocks)
    near.submit(
        [Read(remote[at : at + 100], row) for row, at in zip(back, places, strict=True)]
    ).wait(WAIT)
    assert np.array_equal(back, blocks)
    for at, row in zip(places, blocks, strict=True):
        assert far.call("run", _LOOK, start=at, length=100) == row.tobytes()

    for wrong in (start - 4096, border + MIB, 100):  # the last is what 31 or 32 bits would hold
        with pytest.raises(TransferError):
            near.write(bytes(100), remote[wrong : wrong + 100], provider="verbs").wait(WAIT)
    far.call("run", _CLOSE)
