"""Registration with RDMA devices, over the double of libibverbs: steps, progress, what is left."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from fakeverbs import LIBRARY

from transport import Engine
from transport.config import Settings
from transport.errors import InvalidUse, NativeError
from transport.memory.host import view

MIB = 1 << 20
REMOTE = 2 | 4  # IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ


def open_engine(**settings):
    settings = {"verbs_lib": LIBRARY, "register_step": MIB, "register_threads": 3, **settings}
    return Engine(providers="verbs,tcp", secret=False, settings=Settings(**settings))


def resident(array):
    """Pages of an array that are in memory."""
    page = mmap.PAGESIZE
    start = array.ctypes.data // page * page
    pages = -(-(array.ctypes.data + array.nbytes - start) // page)
    found = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * page), found) == 0
    return sum(byte & 1 for byte in found), pages


def test_a_large_region_tells_its_progress(double):
    """B18: pages are faulted in and registered in steps; both are halves of the way."""
    told = []
    array = np.zeros(8 * MIB, np.uint8)
    with open_engine(register_prefault=MIB, verbs_region_bytes=MIB) as engine:
        before = double.get("mrs")
        with engine.register(array, progress=lambda *at: told.append(at)) as region:
            assert double.get("mrs") == before + 8
            assert len(region.remote()._owner.keys) == 4 * 8
            assert region.explain() == ["fake0:1: 8 registrations"]
        assert double.get("mrs") == before
    done = [at for at, _ in told]
    assert {whole for _, whole in told} == {8 * MIB}
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == 8 * MIB
    assert 4 * MIB in done
    assert len(told) >= 8 + 3 + 1


def test_prefaulting_brings_the_pages_in_and_leaves_the_bytes(double):
    mapped = mmap.mmap(-1, 40 * MIB)
    array = np.frombuffer(mapped, np.uint8)
    array[20 * MIB :: 4096] = 7
    with open_engine(register_prefault=MIB) as engine, engine.register(array):
        assert resident(array)[0] == resident(array)[1]
    assert not array[: 20 * MIB].any()
    assert (array[20 * MIB :: 4096] == 7).all()
    fresh = np.frombuffer(mmap.mmap(-1, 4 * MIB), np.uint8)
    with open_engine(register_prefault=0) as engine, engine.register(fresh):
        assert resident(fresh)[0] == 0  # the double pins nothing


def test_read_only_memory_is_faulted_in_for_reading(double, tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(4 * MIB))
    array = np.memmap(path, np.uint8, "r")
    with open_engine(register_prefault=MIB) as engine, engine.register(array) as region:
        assert str(region.access) == "read"
    # Whoever says that memory can be written may be wrong about it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.from_numpy(array)
    with open_engine(register_prefault=MIB) as engine, engine.register(tensor, access="read"):
        pass


@pytest.mark.parametrize("after", [0, 3, 9])
def test_an_interrupt_leaves_nothing_registered(double, after):
    """Ctrl-C between steps, while pages are faulted in and while parts are registered."""
    array = np.zeros(8 * MIB, np.uint8)
    told = []

    def interrupt(done, whole):
        told.append(done)
        if len(told) > after:
            raise KeyboardInterrupt

    with open_engine(register_prefault=MIB, verbs_region_bytes=MIB) as engine:
        before = double.get("mrs")
        with pytest.raises(KeyboardInterrupt):
            engine.register(array, progress=interrupt)
        assert double.get("mrs") == before
        with engine.register(array):
            assert double.get("mrs") == before + 8


def test_an_engine_that_closes_ends_a_registration(double):
    with open_engine(register_prefault=MIB) as engine:
        array = np.zeros(4 * MIB, np.uint8)
        with pytest.raises(InvalidUse, match="closed"):
            engine.register(array, progress=lambda *_: setattr(engine._core.gate, "closed", True))
        engine._core.gate.closed = False


def test_progress_without_rdma():
    told = []
    array = np.zeros(MIB, np.uint8)
    with Engine(providers="tcp") as engine:
        engine.register(array, progress=lambda *at: told.append(at)).close()
    assert told[-1] == (MIB, MIB)


def test_implicit_registrations_are_nobody_elses(double):
    """A peer that guesses the key of memory that was never offered is refused by the NIC."""
    with open_engine() as engine:
        pins = []
        array = np.zeros(100)
        engine._core.cache.register(view(array), pins)
        offered = engine.register(np.zeros(100))
        assert double.access(key(offered._native)) & REMOTE == REMOTE
        assert double.access(key(pins[0])) & REMOTE == 0
        offered.close()


def key(native):
    from transport.ffi import ffi, lib

    remote = ffi.new("struct tn_remote *")
    lib.tn_region_describe(native.pointer, remote)
    return remote.rkeys[0]


def test_regions_of_the_same_bytes_have_keys_of_their_own(double):
    """Sharing one would leave a closed region's right in force while the other is open."""
    array = np.zeros(100)
    with open_engine() as engine, engine.register(array) as one:
        two = engine.register(array)
        assert key(one._native) != key(two._native)
        old = key(two._native)
        two.close()
        assert double.access(old) == -1
        assert double.access(key(one._native)) != -1


def test_views_share_one_local_registration(double):
    with open_engine() as engine:
        base = torch.zeros(100, 100)
        before, pins = double.get("mrs"), []
        for part in (base, base[3:], base.T, base[::2, 5]):
            engine._core.cache.register(view(part), pins)
        assert double.get("mrs") == before + 1


def test_unused_registrations_make_room(double):
    """B23: at the device's limit the cache gives back what no transfer uses, and only that."""
    arrays = [np.zeros(1000) for _ in range(5)]
    with open_engine() as engine:
        cache = engine._core.cache
        pins = []
        cache.register(view(arrays[0]), pins)
        for array in arrays[1:]:
            cache.register(view(array), [])
        now = double.get("mrs")
        double.set(max_mr=now)
        with engine.register(np.zeros(10)):
            assert double.get("mrs") == now - 4 + 1
        assert cache.entries == 0
        cache.register(view(arrays[0]), pins)
        pins.clear()
        double.set(max_mr=double.get("mrs") - 2)
        with pytest.raises(NativeError, match="this engine holds"):
            engine.register(np.zeros(10))


def test_refusals_are_told(double):
    """B2: in the error of who registers."""
    with open_engine() as engine:
        double.set(reg_errno=12)
        with pytest.raises(NativeError, match="RLIMIT_MEMLOCK") as caught:
            engine.register(np.zeros(10))
        assert caught.value.errno == 12


def test_a_region_that_a_rail_lacks_is_told(double, caplog):
    """B7: it is in the log and in `explain`, and other ways remain."""
    with open_engine(verbs_region_bytes=4096) as engine:
        with engine.register(np.zeros(0)) as empty:
            assert empty.explain() == ["fake0:1: not registered: the region is empty"]
        assert not caplog.records
        with engine.register(np.zeros(8 * MIB)) as region:
            assert "more than 8192 registrations" in region.explain()[0]
            assert region.remote()._owner.keys == b""
    assert ["not registered with every rail" in record.message for record in caplog.records] == [
        True
    ]


def test_a_region_that_is_dropped_is_deregistered(double):
    """B24: the finalizer is a net, and says so."""
    with open_engine() as engine:
        before = double.get("mrs")
        regions = [engine.register(np.zeros(1000))]
        with pytest.warns(ResourceWarning, match="region"):
            drop(regions)
        engine.register(np.zeros(10)).close()  # any call does what finalizers left
        assert double.get("mrs") == before


def test_an_address_that_is_used_again_with_another_size(double):
    """C3: found by storage, never by address."""
    with open_engine() as engine:
        for size in (1 << 16, 1 << 15, 1 << 16):
            tensor = torch.zeros(size)
            pins = []
            engine._core.cache.register(view(tensor), pins)
            assert (pins[0].start, pins[0].end) == (
                tensor.data_ptr(),
                tensor.data_ptr() + 4 * size,
            )
            with engine.register(tensor) as region:
                assert region.remote()._owner.length == 4 * size
            del tensor


@pytest.mark.parametrize(("status", "inits"), [(0, 1), (2, 0)])
def test_fork_protection_only_where_it_is_needed(status, inits):
    """B4, B5: ibv_fork_init splits mappings for good, and newer kernels need none of it."""
    environment = {**os.environ, "FAKEVERBS": f"fork_status={status}"}
    done = subprocess.run(
        [sys.executable, "-c", FORKS, LIBRARY],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == (f"{inits}\n", "")


FORKS = """
import ctypes, sys
from transport import Engine
from transport.config import Settings
settings = Settings(verbs_lib=sys.argv[1])
for _ in range(2):
    with Engine(providers="verbs", secret=False, settings=settings) as engine:
        engine.register(bytearray(100)).close()
print(ctypes.CDLL(sys.argv[1]).fakeverbs_get(b"fork_inits"))
"""


def drop(things):
    things.clear()
    gc.collect()
