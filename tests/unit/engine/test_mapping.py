"""`engine.map`: what the arrays are, what is refused, and how long the owner keeps off."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest
import torch

from transport import (
    Engine,
    InvalidUse,
    Mapping,
    PeerLost,
    RemoteAccessError,
    StaleRegion,
    Unavailable,
)
from transport.memory.pool import SEGMENT_BYTES

LOOPBACK = "127.0.0.1:0"


@pytest.fixture
def pair():
    with Engine(name="owner") as owner, Engine(name="guest") as guest:
        yield owner, guest


def make(owner, shape=(100, 10), dtype=torch.float32, **access):
    tensor = owner.empty(shape, dtype, **access)
    if isinstance(tensor, torch.Tensor):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    else:
        tensor[...] = np.arange(tensor.size).reshape(tensor.shape)
    return tensor


def held(owner):
    gc.collect()
    return owner._core.pool.held_bytes


def test_numpy_is_read_only_and_sees_what_the_owner_writes(pair):
    owner, guest = pair
    tensor = make(owner)
    with owner.register(tensor) as region, guest.map(region.remote()) as mapping:
        assert isinstance(mapping, Mapping)
        array = mapping.numpy()
        assert np.array_equal(array, tensor.numpy())
        assert (array.dtype, array.shape) == (np.float32, (100, 10))
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        tensor.fill_(9)
        assert (array == 9).all()
        assert not mapping.stale


def test_numpy_takes_it_for_an_array(pair):
    owner, guest = pair
    tensor = make(owner)
    with owner.register(tensor) as region, guest.map(region.remote()) as mapping:
        array = np.asarray(mapping)
        assert not array.flags.writeable
        tensor.fill_(9)
        assert (array == 9).all()
        doubles = np.asarray(mapping, np.float64)
        assert doubles.dtype == np.float64
        assert (doubles == 9).all()
        del array
    with pytest.raises(InvalidUse, match="closed"):
        np.asarray(mapping)


def test_torch_is_private_and_in_place_operations_are_harmless(pair):
    owner, guest = pair
    tensor = make(owner)
    with owner.register(tensor) as region, guest.map(region.remote()) as mapping:
        private, array = mapping.torch(), mapping.numpy()
        assert torch.equal(private, tensor)
        private.mul_(2).add_(1)
        private[3:5].zero_()
        assert private[1, 0] == 21
        assert tensor[1, 0] == array[1, 0] == 10
        assert mapping.torch()[1, 0] == 21
        weight = torch.nn.Parameter(private)
        (weight * 2).sum().backward()
        assert weight.grad is not None


@pytest.mark.parametrize(
    "index",
    [
        3,
        (slice(None), 4),
        (slice(2, 90, 7), slice(1, 9, 3)),
        (slice(None, None, -1), slice(None, None, -2)),
        (slice(5, 5),),
        (99, 9),
    ],
    ids=str,
)
def test_parts(pair, index):
    """E1, E4: strided, reversed, empty and scalar parts."""
    owner, guest = pair
    tensor = make(owner)
    with owner.register(tensor) as region, guest.map(region.remote()[index]) as mapping:
        expected = tensor.numpy()[index]
        array = mapping.numpy()
        assert array.shape == expected.shape == mapping.shape
        assert np.array_equal(array, expected)
        assert not array.flags.writeable
        if all(step >= 0 for step in expected.strides):
            assert np.array_equal(mapping.torch().numpy(), expected)
        else:
            with pytest.raises(InvalidUse, match="no strides"):
                mapping.torch()


@pytest.mark.parametrize("step", [2, 1])
def test_a_region_of_a_view(pair, step):
    owner, guest = pair
    tensor = make(owner)[:, 1::step].t()
    with owner.register(tensor) as region, guest.map(region.remote()) as mapping:
        assert torch.equal(mapping.torch(), tensor)
        assert mapping.torch().stride() == tensor.stride()
        assert np.array_equal(mapping.numpy(), tensor.numpy())


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0)], ids=str)
def test_scalars_and_nothing(pair, shape):
    """E4"""
    owner, guest = pair
    tensor = make(owner, shape)
    with owner.register(tensor) as region, guest.map(region.remote()) as mapping:
        assert tuple(mapping.numpy().shape) == tuple(mapping.torch().shape) == shape
        assert not mapping.stale
        region.close()
        assert mapping.stale


def test_dtypes(pair):
    owner, guest = pair
    tensor = make(owner, (7,), torch.bfloat16)
    with owner.register(tensor) as region, guest.map(region.remote()) as mapping:
        assert torch.equal(mapping.torch(), tensor)
        with pytest.raises(InvalidUse, match=r"bfloat16.*torch\(\)"):
            mapping.numpy()
        with guest.map(region.remote().bytes(2, 6)) as part:
            assert part.numpy().tobytes() == tensor.view(torch.uint8).numpy()[2:6].tobytes()
            assert part.dtype is None


def test_read_only_memory(pair):
    owner, guest = pair
    tensor = make(owner, access="read")
    with owner.register(tensor, access="read") as region, guest.map(region.remote()) as mapping:
        private = mapping.torch()
        private.zero_()
        assert np.array_equal(mapping.numpy(), tensor.numpy())


# ------------------------------------------------------------------------------------- how long
def test_the_block_is_not_used_again_while_it_is_mapped(pair):
    owner, guest = pair
    tensor = make(owner)
    place = tensor.data_ptr()
    region = owner.register(tensor)
    mapping = guest.map(region.remote())
    array = mapping.numpy()
    expected = array.copy()
    region.close()
    assert region.quiet
    assert mapping.stale
    del tensor
    assert held(owner) == 4032
    others = [owner.empty((100, 10), torch.float32).fill_(-1) for _ in range(20)]
    assert place not in [other.data_ptr() for other in others]
    assert np.array_equal(array, expected)
    mapping.close()
    assert held(owner) == 4032  # the array is still there
    del array
    assert held(owner) == 0
    assert owner.empty((100, 10), torch.float32).data_ptr() == place


def test_a_dropped_mapping_lets_go(pair):
    owner, guest = pair
    region = owner.register(make(owner))
    mapping = guest.map(region.remote())
    region.close()
    del region
    assert held(owner) == 4032
    del mapping
    assert held(owner) == 0


def test_a_part_holds_the_block_and_neighbours_are_free(pair):
    owner, guest = pair
    flat = make(owner, (10_000,))
    neighbour = make(owner, (10_000,))
    place = neighbour.data_ptr()
    region = owner.register(flat)
    with guest.map(region.remote()[5:6]) as mapping:
        region.close()
        del flat, neighbour
        assert held(owner) == 40_960
        assert owner.empty((10_000,), torch.float32).data_ptr() == place
        assert mapping.numpy()[0] == 5
    assert held(owner) == 0


def test_many_mappings(pair):
    """One descriptor each would not do: nothing is left open."""
    from pathlib import Path

    owner, guest = pair
    tensor = make(owner, (3000, 4))
    with owner.register(tensor) as region:
        remote = region.remote()
        guest.map(remote).close()
        before = len(list(Path("/proc/self/fd").iterdir()))
        mappings = [guest.map(remote[i]) for i in range(3000)]
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
        assert all(m.numpy()[0] == 4 * i for i, m in enumerate(mappings))
        del mappings


def test_the_owner_closes_its_engine(pair):
    owner, guest = pair
    region = owner.register(make(owner))
    big = owner.register(owner.empty(SEGMENT_BYTES + 4096, torch.uint8).fill_(3))
    mappings = [guest.map(region.remote()), guest.map(big.remote())]
    first, second = (mapping.numpy() for mapping in mappings)
    assert not mappings[0].stale
    owner.close()
    del region, big
    gc.collect()
    assert all(mapping.stale for mapping in mappings)
    assert first[99, 9] == 999
    assert second[-1] == 3
    assert second[0] == 3
    private = mappings[0].torch().add_(1)
    assert private[99, 9] == 1000
    with pytest.raises((StaleRegion, PeerLost)):
        guest.map(mappings[0]._remote)


def test_the_guest_closes_its_engine_and_keeps_the_mapping(pair):
    owner, guest = pair
    tensor = make(owner)
    region = owner.register(tensor)
    mapping = guest.map(region.remote())
    array = mapping.numpy()
    guest.close()
    assert array[99, 9] == 999
    region.close()
    assert mapping.stale
    del tensor, region
    assert held(owner) == 4032
    del mapping, array
    assert held(owner) == 0


def test_a_connection_that_is_made_anew_keeps_the_mapping(pair):
    owner, guest = pair
    tensor = make(owner)
    region = owner.register(tensor)
    mapping = guest.map(region.remote())
    guest.peers[0].close()
    assert not mapping.stale
    with guest.map(region.remote()) as again:
        assert again.numpy()[1, 1] == 11
    region.close()
    del tensor, region
    assert held(owner) == 4032
    assert mapping.stale
    mapping.close()
    assert held(owner) == 0


# -------------------------------------------------------------------------------------- refusals
def test_what_cannot_be_mapped(pair):
    owner, guest = pair
    with owner.register(torch.ones(3)) as region:
        with pytest.raises(Unavailable, match="not pool memory"):
            guest.map(region.remote())
        with pytest.raises(InvalidUse, match="RemoteRegion"):
            guest.map(region)
    regions = [
        owner.register(make(owner), access="read"),
        owner.register(make(owner)),
        owner.register(make(owner, access="write"), access="write"),
        owner.register(make(owner)),
    ]
    with pytest.raises(Unavailable, match="other access"):
        guest.map(regions[0].remote())
    with pytest.raises(Unavailable, match="another engine on this host"):
        owner.map(regions[1].remote())
    with pytest.raises(RemoteAccessError, match="may not be read"):
        guest.map(regions[2].remote())
    stale = regions[3].remote()
    for region in regions:
        region.close()
    with pytest.raises(StaleRegion):
        guest.map(stale)
    del region, regions
    assert held(owner) == 0


def test_over_tcp_it_says_so():
    with (
        Engine(listen=LOOPBACK, providers="tcp", secret="s" * 32) as owner,
        Engine(providers="tcp", secret="s" * 32) as guest,
        owner.register(make(owner)) as region,
        pytest.raises(Unavailable, match="on this host"),
    ):
        guest.map(region.remote())


def test_a_closed_mapping_and_a_closed_engine(pair):
    owner, guest = pair
    with owner.register(make(owner)) as region:
        mapping = guest.map(region.remote())
        with pytest.raises(TypeError, match="remote region"):
            pickle.dumps(mapping)
        assert "live" in repr(mapping)
        mapping.close()
        mapping.close()
        assert mapping.closed
        assert "closed" in repr(mapping)
        for use in (mapping.numpy, mapping.torch, lambda: mapping.stale):
            with pytest.raises(InvalidUse, match="closed"):
                use()
        guest.close()
        with pytest.raises(InvalidUse, match="closed"):
            guest.map(region.remote())
