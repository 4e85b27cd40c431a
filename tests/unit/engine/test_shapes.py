"""Tensors of every shape over every path of one host: E1 to E9 of the fault reports."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from transport import Engine, InvalidUse, NativeError, Read, Write

WAIT = 60.0
SECRET = "0123456789abcdef"
PATHS = ["mapped", "process_vm", "tcp", "self"]


@pytest.fixture(scope="module", params=PATHS)
def pair(request):
    """Owner, guest, and whether the owner's memory is the pool's."""
    options = {"secret": SECRET, "providers": "tcp" if request.param == "tcp" else "shm"}
    if request.param == "tcp":
        options["listen"] = "127.0.0.1:0"
    with Engine(name="owner", **options) as owner:
        if request.param == "self":
            yield owner, owner, False
            return
        with Engine(name="guest", **options) as guest:
            yield owner, guest, request.param == "mapped"


def made(pair, shape, dtype=torch.float32):
    """The owner's memory, 0, 1, 2 ..."""
    owner, _, pool = pair
    tensor = owner.empty(shape, dtype) if pool else torch.empty(shape, dtype=dtype)
    return tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))


VIEWS = {
    "transposed": lambda t: t.t(),
    "rows": lambda t: t[2:9:3],
    "columns": lambda t: t[:, 1:8:2],
    "both": lambda t: t[1::2, ::3].t(),
    "diagonal": lambda t: t.diagonal(),
    "one": lambda t: t[3, 4],
    "unfolded": lambda t: t.unsqueeze(1).transpose(0, 2),
    "narrow": lambda t: t.narrow(1, 9, 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_on_both_sides(pair, name):
    """E1: never silently wrong, and nothing beside the view is touched."""
    owner, guest, _ = pair
    base = made(pair, (12, 10))
    theirs = VIEWS[name](base)
    expected = theirs.clone()
    with owner.register(theirs) as region:
        plain, strided = torch.empty(theirs.shape), VIEWS[name](torch.full((12, 10), -1.0))
        guest.read(region.remote(), into=plain).wait(WAIT)
        guest.read(region.remote(), into=strided).wait(WAIT)
        assert torch.equal(plain, expected)
        assert torch.equal(strided, expected)
        before = base.clone()
        guest.write(plain + 1000, region.remote()).wait(WAIT)
        VIEWS[name](before).add_(1000)
        assert torch.equal(base, before)


@pytest.mark.parametrize("flip", [(-1, 1), (1, -2), (-3, -1)], ids=str)
def test_negative_steps(pair, flip):
    """E1: numpy alone has them."""
    owner, guest, _ = pair
    base = made(pair, (12, 10)).numpy()
    theirs = base[:: flip[0], :: flip[1]]
    with owner.register(theirs) as region:
        into = np.full((12, 10), -1, np.float32)[:: flip[1], :: flip[0]]
        into = np.empty(theirs.shape, np.float32) if into.shape != theirs.shape else into
        guest.read(region.remote(), into=into).wait(WAIT)
        assert np.array_equal(into, theirs)
        guest.write(theirs + 500, region.remote()).wait(WAIT)
        assert base[-1 if flip[0] < 0 else 0, -1 if flip[1] < 0 else 0] >= 500


def test_expanded(pair):
    """E1: a source like any other; as a destination it is refused, for its elements share bytes."""
    owner, guest, _ = pair
    theirs = made(pair, (4,)).expand(3, 4)
    into = torch.empty(3, 4)
    with owner.register(theirs) as region:
        guest.read(region.remote(), into=into).wait(WAIT)
        assert torch.equal(into, theirs)
        with pytest.raises(InvalidUse, match="share bytes"):
            guest.write(into, region.remote())
        with pytest.raises(InvalidUse, match="share bytes"):
            guest.read(region.remote(), into=torch.empty(4).expand(3, 4))
    with owner.register(made(pair, (3, 4))) as region:
        guest.write(torch.full((1,), 9.0).expand(3, 4), region.remote()).wait(WAIT)
        guest.read(region.remote(), into=into).wait(WAIT)
        assert bool((into == 9).all())


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0), (1,), (3, 0, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_scalars_and_nothing(pair, shape, dtype):
    """E4, E9: a region of no bytes is a region."""
    owner, guest, _ = pair
    theirs = made(pair, shape, dtype)
    with owner.register(theirs) as region:
        into = torch.zeros(shape, dtype=dtype)
        guest.read(region.remote(), into=into).wait(WAIT)
        guest.write(into, region.remote()).wait(WAIT)
        assert torch.equal(into, theirs)


def test_no_requests(pair):
    """E5"""
    _, guest, _ = pair
    guest.submit([]).wait(WAIT)


def test_empty_ones_among_others(pair):
    """E5, E7"""
    owner, guest, _ = pair
    tensors = [made(pair, shape) for shape in [(0, 4), (3, 4), (), (4, 0), (1, 4)]]
    regions = [owner.register(tensor) for tensor in tensors]
    into = [torch.zeros_like(tensor) for tensor in tensors]
    guest.submit([Read(r.remote(), i) for r, i in zip(regions, into)]).wait(WAIT)
    for ours, theirs in zip(into, tensors):
        assert torch.equal(ours, theirs)
    for region in regions:
        region.close()


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 3, 7, 8])
def test_uneven_shards(pair, world, dim, length):
    """E7: torch's Shard(dim) of an uneven length leaves short shards, and ranks with none."""
    owner, guest, _ = pair
    shape = [3, 5, 2]
    shape[dim] = length
    whole = made(pair, tuple(shape))
    step = -(-length // world)
    cuts = [(min(r * step, length), min((r + 1) * step, length)) for r in range(world)]
    with owner.register(whole) as region:
        index = [(*[slice(None)] * dim, slice(*cut)) for cut in cuts]
        shards = [torch.full_like(whole, -1)[i].contiguous() for i in index]
        requests = [Read(region.remote()[i], shard) for i, shard in zip(index, shards)]
        guest.submit(requests).wait(WAIT)
        assert torch.equal(torch.cat(shards, dim), whole)
        writes = [Write(shard + 100, region.remote()[i]) for i, shard in zip(index, shards)]
        expected = whole + 100
        guest.submit(writes).wait(WAIT)
        assert torch.equal(whole, expected)


def test_a_failed_registration_leaves_everything_as_it_was(pair):
    """E6"""
    owner, guest, _ = pair
    tensor = made(pair, (10,))
    used = owner._core.pool.used_bytes
    for wrong in (torch.empty(3, device="meta"), torch.eye(2).to_sparse(), object()):
        with pytest.raises(InvalidUse):
            owner.register(wrong)
    with pytest.raises(NativeError):
        owner.empty(1 << 50, "uint8")
    with pytest.raises(InvalidUse, match="access"):
        owner.register(tensor, access="everything")
    assert owner._core.pool.used_bytes == used
    with owner.register(tensor) as region:
        into = torch.empty(10)
        guest.read(region.remote(), into=into).wait(WAIT)
        assert torch.equal(into, tensor)
