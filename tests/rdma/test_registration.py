"""Registrations come and go without leaving anything, and say what is missing when they cannot."""

from __future__ import annotations

import errno
import gc
import mmap
import os

import numpy as np
import pytest
import rig
from verbs_ways import TWO_HOSTS

from transport.config import Settings
from transport.engine.engine import Engine
from transport.errors import NativeError
from transport.testing.contract import FarSide
from transport.testing.processes import PeerProcess

pytestmark = pytest.mark.usefixtures("on_b")

WAIT = 60.0


def holdings():
    return {**rig.resources(), "descriptors": rig.descriptors()}


def test_a_thousand_registrations():
    memory = np.zeros(1 << 20, np.uint8)
    with Engine() as engine:
        engine.register(memory).close()
        before = holdings()
        for _ in range(1000):
            engine.register(memory).close()
        assert holdings() == before
        regions = [engine.register(memory[i * 4096 : (i + 1) * 4096]) for i in range(100)]
        assert holdings() == {**before, "mr": before["mr"] + 100}
        for region in regions:
            region.close()
        assert holdings() == before


def test_implicit_registrations_go_with_their_arrays():
    with Engine() as engine, FarSide(TWO_HOSTS) as far:
        remote = far.make("x", 4096)
        engine.write(np.zeros(4096, np.uint8), remote).wait(WAIT)
        gc.collect()
        engine.write(bytes(4096), remote).wait(WAIT)
        before = holdings()
        for _ in range(300):
            engine.write(np.zeros(4096, np.uint8), remote).wait(WAIT)
        gc.collect()
        engine.register(np.zeros(8, np.uint8)).close()  # any call does what finalizers left
        after = holdings()
        assert after.pop("mr") - before.pop("mr") in (-1, 0, 1)
        assert after == before


def test_engines_and_peers_leave_nothing():
    before = None
    for _ in range(4):
        with Engine() as engine, FarSide(TWO_HOSTS) as far:
            engine.write(bytes(4096), far.make("x", 4096)).wait(WAIT)
            assert rig.resources()["qp"] == 1
        now = holdings()
        assert [now[kind] for kind in ("pd", "cq", "qp", "mr")] == [0, 0, 0, 0]
        assert before in (None, now)
        before = now


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # threads and fork
def test_the_other_half_of_a_registered_page_is_the_childs_too():
    """B5: fork protection by pages would take it from the child, who then dies of writing there."""
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with Engine() as engine, engine.register(np.frombuffer(page, np.uint8)[:2048]):
        child = os.fork()
        if child == 0:
            page[3000] = 1
            page[1000] = 1
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (page[3000], page[1000]) == (0, 0)


def test_parts_of_a_large_region():
    """B1, B19, over real keys: borders of both sides are crossed."""
    with (
        Engine(settings=Settings.from_env(verbs_region_bytes=1 << 20)) as engine,
        FarSide(TWO_HOSTS) as far,
    ):
        ours = np.arange(7 << 17, dtype=np.uint32)
        remote = far.make("x", ours.nbytes)
        assert rig.resources()["mr"] == 0
        with engine.register(ours) as region:
            assert rig.resources()["mr"] == 4
            assert len(region.remote()._owner.keys) == 16
            transfer = engine.write(region, remote.bytes())
            transfer.wait(WAIT)
            assert transfer.path == "rc"
            back = np.zeros_like(ours)
            with engine.register(back[100:]) as odd:
                engine.read(remote.bytes(400), odd).wait(WAIT)
            assert np.array_equal(back[100:], ours[100:])


def test_a_large_region_is_registered_in_steps():
    """B18: by real pinning, with the pages faulted in before."""
    told = []
    settings = Settings.from_env(
        verbs_region_bytes=4 << 20, register_prefault=1 << 20, register_step=2 << 20
    )
    memory = np.zeros(32 << 20, np.uint8)
    with Engine(settings=settings) as engine:
        before = rig.resources()["mr"]
        engine.register(memory, progress=lambda *at: told.append(at)).close()
        assert rig.resources()["mr"] == before
    assert told[-1] == (memory.nbytes, memory.nbytes)
    assert len(told) > 16


# Root without CAP_IPC_LOCK is held to RLIMIT_MEMLOCK as everybody is.
_LIMITED = ("setpriv", "--bounding-set=-ipc_lock", "--")

_LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (nbytes, nbytes))
"""


def test_a_memory_lock_limit_that_is_too_small():
    with PeerProcess(*_LIMITED) as child, FarSide(TWO_HOSTS) as far:
        child.call("run", _LIMIT, nbytes=8 << 20)
        child.call("open", listen="10.8.0.2:0")
        child.call("make", "small", 1 << 20)
        with pytest.raises(NativeError) as caught:
            child.call("make", "big", 16 << 20)
        assert caught.value.errno == errno.ENOMEM
        for part in ("RLIMIT_MEMLOCK is 8388608 bytes", "ulimit -l", "rxe_b"):
            assert part in str(caught.value)
        # What fits is moved by RDMA all the same.
        assert child.call("read", far.make("x", 1 << 20), "small", WAIT) == "rc"


def test_a_limit_too_small_even_for_a_connection():
    """The peer is reached all the same, and `explain` says what is missing."""
    with PeerProcess(*_LIMITED) as child, FarSide(TWO_HOSTS) as far:
        child.call("open", listen="10.8.0.2:0")
        child.call("make", "tiny", 4096)
        child.call("run", _LIMIT, nbytes=16 << 10)
        assert child.call("read", far.make("x", 4096), "tiny", WAIT) == "tcp"
        lines = child.call("run", "result = servant.engine.peers[0].explain()")
        assert any("verbs" in line and "RLIMIT_MEMLOCK is 16384 bytes" in line for line in lines)
