"""Memory that is shared already is registered as it lies; where its file has ended it is stale."""

from __future__ import annotations

import mmap
import os
import warnings

import numpy as np
import pytest
import torch

from transport import Engine, InvalidUse, RemoteAccessError, StaleRegion, Unavailable
from transport.memory.backing import backing_of
from transport.testing.servant import pattern

WAIT = 60.0
NBYTES = 300_000
SECRET = "0123456789abcdef"

WAYS = {"process_vm": "shm", "tcp": "tcp", "self": "shm"}


@pytest.fixture(params=WAYS)
def pair(request):
    """Owner, guest and the path between them."""
    way = request.param
    options = {"providers": WAYS[way], "secret": SECRET}
    if way == "tcp":
        options["listen"] = "127.0.0.1:0"
    with Engine(name="owner", **options) as owner:
        if way == "self":
            yield owner, owner, way
            return
        with Engine(name="guest", **options) as guest:
            yield owner, guest, way


class MemoryFile:
    """A memfd, mapped."""

    def __init__(self, nbytes=NBYTES, **options):
        self.fd = os.memfd_create("a-test", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, nbytes)
        self.map = mmap.mmap(self.fd, nbytes, **options)

    def close(self):
        os.close(self.fd)


@pytest.fixture
def memfd():
    file = MemoryFile()
    yield file
    file.close()


def test_a_memfd_is_used_without_a_copy(pair, memfd):
    owner, guest, way = pair
    array = np.frombuffer(memfd.map, np.uint8)
    array[:] = pattern(1, NBYTES)
    with owner.register(array) as region:
        assert region.backing.kind == "file"
        assert region.backing.path == "/memfd:a-test (deleted)"
        assert region.backing.inode == os.fstat(memfd.fd).st_ino
        assert region.backing.offset == 0
        into = np.empty(NBYTES, np.uint8)
        transfer = guest.read(region.remote(), into=into)
        assert transfer.wait(WAIT).path == way
        assert np.array_equal(into, pattern(1, NBYTES))
        guest.write(pattern(2, 1000), region.remote()[5000:6000]).wait(WAIT)
        assert os.pread(memfd.fd, 1000, 5000) == pattern(2, 1000).tobytes()


@pytest.mark.parametrize("kept", [0, 4096, 200_000])
@pytest.mark.parametrize("nbytes", [NBYTES, 64])
def test_a_file_that_was_truncated_is_stale(pair, kept, nbytes):
    """Never SIGBUS, in neither process; and what else there is goes on."""
    owner, guest, _ = pair
    memfd = MemoryFile()
    array, other = np.frombuffer(memfd.map, np.uint8), np.zeros(100, np.uint8)
    with owner.register(array) as region, owner.register(other) as sound:
        remote = region.remote()[NBYTES - nbytes :]
        local = np.ones(nbytes, np.uint8)
        guest.read(remote, into=local).wait(WAIT)
        os.ftruncate(memfd.fd, kept)
        for _ in range(3):
            with pytest.raises(StaleRegion, match=r"too short|closed"):
                guest.read(remote, into=local).wait(WAIT)
            with pytest.raises(StaleRegion, match=r"too short|closed"):
                guest.write(local, remote).wait(WAIT)
            guest.write(np.full(100, 7, np.uint8), sound.remote()).wait(WAIT)
        assert (other == 7).all()
        if kept:
            guest.read(region.remote()[:kept], into=np.empty(kept, np.uint8)).wait(WAIT)
    memfd.close()


def test_many_blocks_of_a_truncated_file(pair):
    owner, guest, _ = pair
    memfd = MemoryFile()
    array = np.frombuffer(memfd.map, np.uint8).reshape(300, 1000)
    with owner.register(array) as region:
        os.ftruncate(memfd.fd, NBYTES // 2)
        with pytest.raises(StaleRegion):
            guest.read(region.remote()[:, 10:20], into=np.empty((300, 10), np.uint8)).wait(WAIT)
    memfd.close()


def test_torch_shared_memory(pair):
    owner, guest, way = pair
    tensor = torch.arange(50_000.0).share_memory_()
    with owner.register(tensor) as region:
        assert region.backing.kind == "file"
        assert region.backing.path.startswith("/dev/shm/")
        into = torch.empty(50_000)
        assert guest.read(region.remote(), into=into).wait(WAIT).path == way
        assert torch.equal(into, tensor)
        with pytest.raises(Unavailable):  # its owner may truncate it
            guest.map(region.remote())


def test_a_file_that_is_mapped_read_only(pair, tmp_path):
    owner, guest, _ = pair
    path = tmp_path / "weights"
    path.write_bytes(pattern(3, NBYTES).tobytes())
    array = np.memmap(path, np.uint8, mode="r", offset=1000)
    with owner.register(array) as region:
        assert str(region.access) == "read"
        assert (region.backing.path, region.backing.offset) == (str(path), 1000)
        assert not region.backing.writable
        into = np.empty(NBYTES - 1000, np.uint8)
        guest.read(region.remote(), into=into).wait(WAIT)
        assert np.array_equal(into, pattern(3, NBYTES)[1000:])
        with pytest.raises(RemoteAccessError):
            guest.write(into, region.remote())
    with pytest.raises(InvalidUse, match="read-only"):
        owner.register(array, access="write")


def test_a_tensor_over_read_only_pages(pair, tmp_path):
    """torch does not know that it may not write; the kernel does."""
    owner, guest, _ = pair
    path = tmp_path / "weights"
    path.write_bytes(pattern(4, NBYTES).tobytes())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensor = torch.frombuffer(pages, dtype=torch.uint8)
        with owner.register(tensor) as region:
            assert str(region.access) == "read"
            into = torch.empty_like(tensor)
            guest.read(region.remote(), into=into).wait(WAIT)
            assert torch.equal(into, tensor)
        with pytest.raises(InvalidUse, match="read-only"):
            owner.register(tensor, access="write")
        del tensor, region


def test_safetensors(pair, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    owner, guest, _ = pair
    path = tmp_path / "model.safetensors"
    weights = torch.randn(300, 500)
    safetensors.save_file({"w": weights}, path)
    loaded = safetensors.load_file(path)["w"]
    with owner.register(loaded) as region:
        into = torch.empty(300, 500)
        guest.read(region.remote(), into=into).wait(WAIT)
        assert torch.equal(into, weights)


def test_ordinary_and_pool_memory():
    with Engine() as engine:
        array, pooled = np.zeros(100_000, np.uint8), engine.empty(1000, "uint8")
        with engine.register(array) as region, engine.register(pooled) as other:
            assert (region.backing.kind, region.backing.path) == ("private", "")
            assert other.backing.kind == "pool"
        with engine.register(np.empty(0)) as region:
            assert region.backing.kind == "private"


def test_memory_of_several_mappings(memfd):
    """Anonymous pages first, then those of the file."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    page, both = mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE
    base = libc.mmap(None, 3 * page, both, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    fixed = 0x10 | mmap.MAP_SHARED
    assert libc.mmap(base + page, page, mmap.PROT_READ, fixed, memfd.fd, page) == base + page
    assert backing_of(base, page).kind == "private"
    whole = backing_of(base + 10, 2 * page)
    assert (whole.kind, whole.writable, whole.offset) == ("file", False, page)
    assert backing_of(base + 2 * page, page).kind == "private"
    assert backing_of(base + page + 100, 10).offset == page + 100
    libc.munmap(ctypes.c_void_p(base), 3 * page)
