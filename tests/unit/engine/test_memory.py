"""Memory of an engine: `empty`, regions, and when memory comes back."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

import transport
from transport import Engine, InvalidUse, StaleRegion

WAIT = 60.0


@pytest.fixture
def pair():
    with Engine(name="a") as a, Engine(name="b") as b:
        yield a, b


# -------------------------------------------------------------------------------------------- empty
@pytest.mark.parametrize("shape", [(), 0, 5, (2, 3), (0, 4), [7, 1], (1000, 1000)], ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, "float32", np.int64]
)
def test_empty(pair, shape, dtype):
    made = pair[0].empty(shape, dtype)
    assert tuple(made.shape) == (tuple(shape) if not isinstance(shape, int) else (shape,))
    if isinstance(dtype, torch.dtype):
        assert isinstance(made, torch.Tensor)
        assert made.dtype is dtype
        assert made.is_contiguous()
        made.view(torch.uint8 if made.dim() else made.dtype).zero_()
    else:
        assert made.dtype == np.dtype(dtype)
        assert made.flags.writeable
        made[...] = 1
        assert (made == 1).all()


def test_empty_alignment(pair):
    for nbytes, step in ((1, 64), (100, 64), (4096, 4096), (10_000, 4096)):
        assert pair[0].empty(nbytes, torch.uint8).data_ptr() % step == 0


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        (-1, "uint8", "negative"),
        ("x", "uint8", "whole number"),
        (2.5, "uint8", "whole number"),
        (2, "bfloat16", "torch.bfloat16"),
        (2, object, "Python objects"),
        (2, "nothing", "no dtype 'nothing'$"),
    ],
)
def test_empty_refusals(pair, shape, dtype, words):
    with pytest.raises(InvalidUse, match=words):
        pair[0].empty(shape, dtype)
    with pytest.raises(InvalidUse, match="access"):
        pair[0].empty(1, "uint8", access="everything")


def test_more_memory_than_there_is(pair):
    with pytest.raises((transport.NativeError, InvalidUse)):
        pair[0].empty(1 << 50, "uint8")
    assert pair[0].empty(10, "uint8").nbytes == 10


def test_memory_comes_back_when_the_last_view_dies(pair):
    engine = pair[0]
    pool = engine._core.pool
    tensor = engine.empty((4, 1 << 20), torch.uint8)
    address, part = tensor.data_ptr(), tensor[1:2]
    del tensor
    engine.empty(1, "uint8")
    assert pool.used_bytes >= 4 << 20
    del part
    gc.collect()
    assert engine.empty((4, 1 << 20), torch.uint8).data_ptr() == address


def test_segments_of_large_tensors_are_given_back(pair):
    pool = pair[0]._core.pool
    for _ in range(3):
        tensor = pair[0].empty(300 << 20, torch.uint8)
        assert len(pool._segments) == 1
        del tensor
    pool.drain()
    assert len(pool._segments) == 0


def test_a_block_is_not_reused_while_its_region_is_open(pair):
    a, b = pair
    tensor = a.empty(1 << 20, torch.uint8).zero_()
    address = tensor.data_ptr()
    region = a.register(tensor)
    del tensor
    other = a.empty(1 << 20, torch.uint8)
    assert other.data_ptr() != address
    b.write(torch.ones(1 << 20, dtype=torch.uint8), region.remote()).wait(WAIT)
    assert (other != 1).any() or other.sum() != 1 << 20
    region.close()
    assert a.empty(1 << 20, torch.uint8).data_ptr() == address


def test_tensors_outlive_the_engine():
    with Engine() as engine:
        tensor, array = engine.empty(1 << 20, torch.uint8), engine.empty(3 << 20, "uint8")
        tensor.fill_(7)
        array[:] = 8
    assert (tensor == 7).all()
    assert (array == 8).all()
    del tensor
    gc.collect()
    assert (array == 8).all()
    array[:] = 9
    del array
    gc.collect()


@pytest.mark.parametrize("access", ["read", "write", "read-write"])
def test_access_modes_do_not_share_segments(pair, access):
    a, b = pair
    tensors = {mode: a.empty(100, torch.uint8, access=mode) for mode in ("read", "write")}
    tensors["read-write"] = a.empty(100, torch.uint8)
    numbers = {mode: a._core.pool.find(t.data_ptr()) for mode, t in tensors.items()}
    assert len(set(numbers.values())) == 3
    tensors[access].fill_(5)
    with a.register(tensors[access], access=access) as region:
        if "read" in access:
            into = torch.zeros(100, dtype=torch.uint8)
            assert b.read(region.remote(), into).wait(WAIT).path == "mapped"
            assert (into == 5).all()
        if "write" in access:
            source = torch.full((100,), 6, dtype=torch.uint8)
            assert b.write(source, region.remote()).wait(WAIT).path == "mapped"
            assert (tensors[access] == 6).all()


def test_a_region_of_other_access_than_its_segment_is_not_mapped(pair):
    a, b = pair
    tensor = a.empty(100, torch.uint8).fill_(1)
    with a.register(tensor, access="read") as region:
        assert b.read(region.remote(), bytearray(100)).wait(WAIT).path == "process_vm"


def test_views_of_pool_memory_are_mapped(pair):
    a, b = pair
    tensor = a.empty((10, 10), torch.float32).fill_(1)
    tensor[3] = 2
    with a.register(tensor[3]) as row, a.register(tensor.t()[4:]) as turned:
        into = torch.zeros(10)
        assert b.read(row.remote(), into).wait(WAIT).path == "mapped"
        assert (into == 2).all()
        into = torch.zeros(6, 10)
        assert b.read(turned.remote(), into).wait(WAIT).path == "mapped"
        assert torch.equal(into, tensor.t()[4:])


# ---------------------------------------------------------------------------------------- registers
def test_region_facts(pair):
    tensor = torch.zeros(3, 4, dtype=torch.bfloat16)
    with pair[0].register(tensor, access="read") as region:
        assert (region.nbytes, region.shape, region.dtype) == (24, (3, 4), "bfloat16")
        assert region.access is transport.Access.READ
        assert "bfloat16[3, 4]" in repr(region)
        remote = region.remote()
        assert region.remote() is remote
        assert (remote.shape, remote.dtype, remote.access) == (
            region.shape,
            region.dtype,
            region.access,
        )
        assert remote.incarnation == pair[0].incarnation
        assert remote.addresses == pair[0].addresses
    assert region.closed
    assert region.quiet
    region.close()
    with pytest.raises(InvalidUse, match="closed"):
        region.remote()


def test_read_only_memory(pair):
    a, b = pair
    with a.register(b"hello") as region:
        assert region.access is transport.Access.READ
        into = bytearray(5)
        b.read(region.remote(), into).wait(WAIT)
        assert into == b"hello"
    with pytest.raises(InvalidUse, match="read-only"):
        a.register(b"hello", access="write")


@pytest.mark.parametrize(
    "make", [lambda: np.arange(24.0).reshape(4, 6)[::-1, ::2], lambda: np.arange(10)[::-3]]
)
def test_strided_regions_cover_their_span(pair, make):
    a, b = pair
    array = make()
    with a.register(array) as region:
        into = np.zeros(array.shape, array.dtype)
        b.read(region.remote(), into).wait(WAIT)
        assert np.array_equal(into, array)


@pytest.mark.parametrize("x", [torch.empty(0), np.empty((3, 0)), b"", bytearray()], ids=repr)
def test_empty_regions(pair, x):
    a, b = pair
    with a.register(x) as region:
        into = bytearray()
        assert b.read(region.remote(), into).wait(WAIT).bytes == 0


def test_a_region_keeps_its_tensor_alive(pair):
    tensor = torch.ones(10)
    storage = weakref.ref(tensor.untyped_storage())
    region = pair[0].register(tensor)
    del tensor
    assert storage() is not None
    region.close()
    gc.collect()
    assert storage() is None


def test_a_dropped_region_warns_and_is_closed(pair):
    a, b = pair
    region = a.register(torch.ones(10))
    remote = region.remote()
    with pytest.warns(ResourceWarning, match="unclosed region .*keep the region"):
        del region
    a.empty(0, "uint8")  # any call does what finalizers left
    with pytest.raises(StaleRegion):
        b.read(remote, torch.zeros(10)).wait(WAIT)


def test_a_region_as_the_local_side(pair):
    a, b = pair
    with (
        a.register(torch.arange(10)) as there,
        b.register(torch.zeros(10, dtype=torch.int64)) as here,
    ):
        b.read(there.remote(), here).wait(WAIT)
        b.write(here, there.remote()).wait(WAIT)
        remote = there.remote()
    with pytest.raises(InvalidUse, match="closed"):
        b.read(remote, here)


def test_many_regions_are_opened_and_closed(pair):
    a, b = pair
    tensor = torch.zeros(100)
    for i in range(300):
        tensor[0] = i
        with a.register(tensor) as region:
            into = torch.zeros(100)
            b.read(region.remote(), into).wait(WAIT)
            assert into[0] == i
    assert not a._core.regions._live


# -------------------------------------------------------------------------------- impossible wishes
@pytest.mark.parametrize("dtype", ["uint8", torch.float32, "complex128"])
@pytest.mark.parametrize("shape", [1 << 70, (1 << 40, 1 << 40), (0, 1 << 70), [1 << 64]], ids=str)
def test_shapes_beyond_any_memory(pair, shape, dtype):
    with pytest.raises(InvalidUse, match="beyond any memory"):
        pair[0].empty(shape, dtype)


def test_a_dtype_with_dimensions_of_its_own(pair):
    with pytest.raises(InvalidUse, match="dimensions of its own"):
        pair[0].empty(3, "(2,)f4")


@pytest.mark.parametrize("timeout", [float("nan"), "soon", b"1"])
def test_closing_with_what_is_no_time_changes_nothing(pair, timeout):
    a, b = pair
    with a.register(np.arange(10)) as region:
        with pytest.raises(InvalidUse, match="number of seconds"):
            region.close(timeout)
        assert not region.closed
        b.read(region.remote(), np.zeros(10, np.int64)).wait(WAIT)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 0, -1])
def test_closing_with_any_time_revokes(pair, timeout):
    a, b = pair
    region = a.register(np.arange(10))
    remote = region.remote()
    region.close(timeout)
    assert region.closed
    with pytest.raises(StaleRegion):
        b.read(remote, np.zeros(10, np.int64)).wait(WAIT)


def test_times_that_are_none(pair):
    a, b = pair
    with a.register(np.arange(10)) as region:
        transfer = b.read(region.remote(), np.zeros(10, np.int64))
        for wait in (transfer.wait, transfer.wait_quiet, b.notifications().wait):
            for timeout in (float("nan"), "soon"):
                with pytest.raises(InvalidUse, match="number of seconds"):
                    wait(timeout)
        transfer.wait(float("inf"))
        peer = b.connect(a.addresses[0], timeout=float("inf"))
        for call in (lambda t: peer.lookup("x", t), lambda t: b.connect(a.addresses[0], timeout=t)):
            with pytest.raises(InvalidUse, match="number of seconds"):
                call(float("nan"))


def test_many_regions_open_and_close_in_any_order(pair):
    a, b = pair
    source = np.arange(2000 * 8).reshape(2000, 8)
    regions = [a.register(row) for row in source]
    remotes = [region.remote() for region in regions]
    into = np.zeros((2000, 8), np.int64)
    b.submit([transport.Read(r, i) for r, i in zip(remotes, into)]).wait(WAIT)
    assert np.array_equal(source, into)
    for region in regions[::2] + regions[1::2][::-1]:
        region.close()
    for remote in remotes[::100]:
        with pytest.raises(StaleRegion):
            b.read(remote, into[0]).wait(WAIT)
