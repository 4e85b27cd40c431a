"""Grants: many handles at once, of storages that are registered while one grant needs them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from transport import Engine, InvalidUse, Read, StaleRegion

WAIT = 60.0


@pytest.fixture
def pair():
    with Engine(name="a") as a, Engine(name="b") as b:
        yield a, b


def fetch(engine, handle):
    found = torch.empty(handle.shape, dtype=getattr(torch, handle.dtype))
    engine.read(handle, found).wait(WAIT)
    return found


def test_each_tensor_has_a_handle_of_its_dtype_shape_and_strides(pair):
    a, b = pair
    base = torch.arange(24.0).view(4, 6)
    things = [base, base[1:3], base.t(), base[:, 2], base[3, 5], base[:0], torch.tensor(7)]
    with a.grant(things, access="read") as grant:
        assert len(a.regions) == 2
        assert grant.nbytes == 24 * 4 + 8
        for thing, handle in zip(things, grant.handles):
            assert torch.equal(fetch(b, handle), thing)
        b.submit([Read(h, torch.empty_like(t)) for h, t in zip(grant.handles, things)]).wait(WAIT)
    assert a.regions == ()


def test_arrays_too(pair):
    a, b = pair
    base = np.arange(30, dtype=np.int32).reshape(5, 6)
    things = [base, base[::-1, ::2], base.T, np.zeros(3, "i4,f8"), bytearray(b"abc")]
    with a.grant(things, access="read") as grant:
        assert len(a.regions) == 3
        found = np.empty((5, 3), np.int32)
        b.read(grant.handles[1], found).wait(WAIT)
        assert np.array_equal(found, things[1])
        found = bytearray(3)
        b.read(grant.handles[4], found).wait(WAIT)
        assert found == b"abc"


def test_a_storage_stays_until_its_last_grant_is_closed(pair):
    a, b = pair
    tensor = torch.arange(1000.0)
    first, second = a.grant([tensor, tensor[5:]]), a.grant([tensor[10:20]])
    assert len(a.regions) == 1
    first.close()
    first.close()
    assert torch.equal(fetch(b, second.handles[0]), tensor[10:20])
    handle = second.handles[0]
    second.close()
    assert a.regions == ()
    with pytest.raises(StaleRegion):
        fetch(b, handle)
    with pytest.raises(InvalidUse, match="closed"):
        _ = second.handles


def test_other_rights_are_another_region(pair):
    tensor = torch.zeros(10)
    with pair[0].grant([tensor], access="read"), pair[0].grant([tensor]) as both:
        assert len(pair[0].regions) == 2
        pair[1].write(torch.ones(10), both.handles[0]).wait(WAIT)
        assert tensor.sum() == 10


def test_a_storage_that_was_resized_is_registered_anew(pair):
    a, b = pair
    tensor = torch.arange(10.0)
    first = a.grant([tensor])
    tensor.resize_(100_000).copy_(torch.arange(100_000.0))
    second = a.grant([tensor])
    assert torch.equal(fetch(b, second.handles[0]), tensor)
    first.close()
    assert torch.equal(fetch(b, second.handles[0]), tensor)
    second.close()
    assert a.regions == ()


def test_of_things_that_cannot_be_granted_nothing_is(pair):
    with pytest.raises(InvalidUse, match="layout"):
        pair[0].grant([torch.zeros(5), torch.eye(3).to_sparse()])
    with pytest.raises(InvalidUse, match="no memory"):
        pair[0].grant([torch.zeros(5), 3])
    assert pair[0].regions == ()


def test_a_grant_that_is_dropped_counts_no_more(pair):
    a, b = pair
    tensor = torch.arange(100.0)
    kept = a.grant([tensor])
    dropped = [a.grant([tensor])]
    with pytest.warns(ResourceWarning, match="unclosed grant of 1; its handles become stale"):
        dropped.clear()
    assert torch.equal(fetch(b, kept.handles[0]), tensor)
    kept.close()
    assert a.regions == ()


def test_it_ends_with_its_engine_and_is_not_pickled():
    engine = Engine()
    grant = engine.grant([torch.zeros(3)])
    with pytest.raises(TypeError, match="send its handles"):
        grant.__reduce__()
    assert repr(grant) == "<Grant of 1>"
    engine.close()
    assert grant.closed
    grant.close()


def test_many_threads_grant_and_close_the_same_storages(pair):
    a, b = pair
    tensors = [torch.full((1000,), float(i)) for i in range(4)]
    errors = []

    def work():
        try:
            for _ in range(50):
                with a.grant(tensors, access="read") as grant:
                    i = len(errors) + 1
                    assert torch.equal(fetch(b, grant.handles[i]), tensors[i])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert errors == []
    assert a.regions == ()


# -------------------------------------------------------------------- handles of parts of a region
def test_a_region_has_handles_for_tensors_inside_it(pair):
    a, b = pair
    base = torch.arange(100.0)
    with a.register(base[10:90]) as region:
        assert torch.equal(fetch(b, region.remote(base[20:30])), base[20:30])
        assert torch.equal(
            fetch(b, region.remote(base[10:90].view(8, 10).t())), base[10:90].view(8, 10).t()
        )
        assert region.remote(base[:0]).nbytes == 0
        for other in (base[9:20], base[80:91], torch.arange(3.0), base.clone()[20:30]):
            with pytest.raises(InvalidUse, match="not in the memory of this region"):
                region.remote(other)
    with pytest.raises(InvalidUse, match="closed"):
        region.remote(base[20:30])


def test_pages_that_are_there_are_asked_for_once(pair):
    engine = pair[0]
    for size in (1 << 20, 3 << 20, 5000, 2 << 20):
        kept = [engine.empty(size, torch.uint8).fill_(7) for _ in range(3)]
        del kept[1]
        assert int(engine.empty(size, torch.uint8).fill_(9).sum()) == 9 * size
        assert int(kept[0].sum()) == 7 * size
