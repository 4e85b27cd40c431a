"""Registrations of memory that nobody registered. The table is real, RDMA is not needed for it."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from transport import Engine
from transport.memory.cache import LocalCache
from transport.memory.host import view

WAIT = 60.0


@pytest.fixture
def engine():
    with Engine() as made:
        yield made


@pytest.fixture
def cache(engine):
    made = LocalCache(engine._core.regions)
    yield made
    made.close_all()


def test_views_of_one_storage_share_a_registration(cache):
    for base in (torch.zeros(4, 5), np.zeros((4, 5))):
        pins = []
        numbers = {cache.register(view(x), pins) for x in (base, base[1:], base.T, base[2, 3:])}
        assert len(numbers) == 1
        assert {pin.end - pin.start for pin in pins} == {base.nbytes}
    assert (cache.hits, cache.misses, cache.entries) == (6, 2, 2)


def test_the_death_of_a_storage_retires_its_registration(cache):
    tensor = torch.zeros(1000)
    cache.register(view(tensor), [])
    assert (cache.entries, cache.bytes) == (1, 4000)
    part = tensor[1:]
    del tensor
    cache.drain()
    assert cache.entries == 1
    del part
    cache.drain()
    assert cache.entries == 0


def test_a_new_tensor_at_an_old_address_is_registered_anew(cache):
    seen = set()
    for _ in range(20):
        tensor = torch.zeros(1 << 16)
        pins = []
        cache.register(view(tensor), pins)
        assert pins[0].start == tensor.data_ptr()
        seen.add(tensor.data_ptr())
        del tensor
    assert cache.misses == 20
    if len(seen) == 20:
        pytest.skip("the allocator reused no address (a sanitizer's does not)")


def test_a_resized_storage_is_registered_anew(cache):
    tensor = torch.zeros(10)
    first = cache.register(view(tensor), [])
    tensor.resize_(100_000)
    pins = []
    assert cache.register(view(tensor), pins) != first or pins[0].end - pins[0].start == 400_000
    assert (pins[0].start, pins[0].end - pins[0].start) == (tensor.data_ptr(), 400_000)
    cache.drain()
    assert cache.entries == 1


def test_memory_whose_death_nothing_tells_is_registered_for_one_use(cache):
    data = bytearray(100)
    pins = []
    cache.register(view(data), pins)
    assert cache.entries == 0
    assert pins[0].temporary
    table = pins[0].table
    pins.clear()
    gc.collect()
    assert table.has_chores
    table.drain()
    assert not table.has_chores


def test_an_explicit_region_is_preferred(engine, cache):
    tensor = torch.zeros(10, 10)
    with engine.register(tensor[2:8]) as region:
        pins = []
        cache.register(view(tensor[3:5]), pins)
        assert pins[0] is region._native
        cache.register(view(tensor[:1]), pins)
        assert pins[1] is not region._native


def test_an_explicit_region_of_a_resized_tensor_is_not(engine, cache):
    tensor = torch.zeros(1 << 16)
    with engine.register(tensor) as region:
        tensor.untyped_storage().resize_(8)
        others = [torch.zeros(1 << 16) for _ in range(8)]
        for other in others:
            pins = []
            cache.register(view(other), pins)
            assert pins[0] is not region._native


def test_a_closed_region_stays_sound_for_who_found_it(engine, cache):
    tensor = torch.zeros(10)
    region = engine.register(tensor)
    pins = []
    number = cache.register(view(tensor), pins)
    region.close()
    table = engine._core.regions
    del region
    table.drain()
    assert pins[0].number == number  # its struct lives as long as the pins
    pins.clear()
    assert table.has_chores
    table.drain()


def test_transfers_with_registered_local_memory(engine):
    """What an engine with RDMA does; here shm carries it."""
    core = engine._core
    core.cache = LocalCache(core.regions)
    core.registrar = lambda owner, provider=None: core.cache.register  # type: ignore[method-assign]
    with Engine() as far, far.register(torch.arange(100)) as region:
        for into in (torch.zeros(100, dtype=torch.int64), np.zeros(100, np.int64), bytearray(800)):
            for _ in range(3):
                engine.read(region.remote(), into).wait(WAIT)
                engine.write(into, region.remote()).wait(WAIT)
        strided = torch.zeros(100, 2, dtype=torch.int64)[:, 0]
        engine.read(region.remote(), strided).wait(WAIT)
        assert torch.equal(strided, torch.arange(100))
    assert core.cache.entries >= 1
    del into, strided
    gc.collect()
    engine.empty(0, "uint8")  # any call does what finalizers left
    assert core.cache.entries == 0
    assert not core.regions.has_chores
