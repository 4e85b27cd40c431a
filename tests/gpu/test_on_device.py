"""What no double can show: the driver, torch and a GPU as they are. Run by tests/gpu/run_on_gpu.sh.

The doubles of the other files would be the driver of their process; these want one of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from capabilities import require
from gpu_peer import GpuPeer, make, pattern

import transport
from transport.ffi import ffi, lib
from transport.memory.driver import driver
from transport.memory.gpu import GPU, HOST, PINNED, extent_at
from transport.memory.host import view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport import Engine

if os.environ.get("TN_GPU_DOUBLE") != "none":
    require("gpu", "only tests/gpu/run_on_gpu.sh runs these, in a process of their own")

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

WAIT = 60.0
MIB = 1 << 20
COUNT = 4 * MIB  # int32: 16 MiB
LONG_KERNEL = 300_000_000  # cycles: some 200 ms
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    torch.zeros(1, device="cuda")  # a program's own context comes first
    with transport.Engine() as one:
        yield one


def note(record_property: Any, transfer: Any) -> None:
    record_property("path", f"{transfer.provider}: {transfer.path}")


# -------------------------------------------------------------------------------------- the driver
def test_the_driver_and_its_facts():
    found = driver()
    assert found.platform == "cuda"
    assert found.devices
    device = found.devices[0]
    assert device.granularity >= 4096
    properties = torch.cuda.get_device_properties(0)
    assert device.name == properties.name
    assert Path(found.file).name.startswith("libcuda.so")


def test_addresses_are_classified(engine: Engine):
    plain = torch.empty(1000, device="cuda")
    found = extent_at(plain.data_ptr(), 4000)
    assert (found.kind, found.device) == (GPU, 0)
    assert found.identity
    assert found.start <= plain.data_ptr() < found.start + found.nbytes
    assert extent_at(torch.empty(10, pin_memory=True).data_ptr(), 40).kind == PINNED
    assert extent_at(torch.empty(10).data_ptr(), 40).kind == HOST
    assert view(plain).device == (torch.device("cuda").type, 0)


def test_an_address_that_is_another_allocations():
    """C2: the driver's buffer id differs once the memory is another one's."""
    torch.cuda.empty_cache()
    first = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    address, before = first.data_ptr(), extent_at(first.data_ptr(), 64 * MIB).identity
    del first
    torch.cuda.empty_cache()
    second = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    after = extent_at(second.data_ptr(), 64 * MIB).identity
    assert second.data_ptr() != address or after != before


def test_dmabuf_export():
    if not driver().devices[0].dmabuf:
        require("dmabuf", "this driver or kernel exports none (open kernel modules, 5.12 or newer)")
    tensor = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    base = extent_at(tensor.data_ptr(), 1).start
    fd, offset = ffi.new("int *"), ffi.new("uint64_t *")
    at = tensor.data_ptr() + 4096 + 512
    assert lib.tn_device_dmabuf(at, 100, fd, offset) == 0
    assert "dmabuf" in str(Path(f"/proc/self/fd/{fd[0]}").readlink())
    assert offset[0] == at - base
    os.close(fd[0])


# ---------------------------------------------------------------------------------------- the pool
def test_the_pool_is_memory_that_torch_computes_with(engine: Engine):
    tensor = engine.empty((512, 512), torch.float32, device="cuda")
    tensor.fill_(2.0)
    assert float((tensor @ tensor).sum()) == 512.0**3 * 4
    found = ffi.new("struct tn_gpu_pointer *")
    assert lib.tn_gpu_pointer(tensor.data_ptr(), found) == 0
    assert found.virtual_memory
    assert found.share_by_fd


def test_growth_and_give_back(engine: Engine):
    before = torch.cuda.mem_get_info()[0]
    tensors = [engine.empty(48 * MIB, torch.uint8, device="cuda") for _ in range(6)]
    for i, tensor in enumerate(tensors):
        tensor.fill_(i)
    assert [int(tensor[-1]) for tensor in tensors] == list(range(6))
    del tensors, tensor
    engine._core.gpu_pool.drain()
    assert torch.cuda.mem_get_info()[0] >= before - 80 * MIB  # one segment is kept


def test_torchs_allocator_over_our_segments(engine: Engine):
    """One registration for each segment, none for each tensor."""
    with transport.gpu_pool():
        tensors = [torch.full((1000,), i, device="cuda") for i in range(1000)]
        model = torch.nn.Linear(256, 256).cuda()
    extents = {extent_at(tensor.data_ptr(), 4000) for tensor in tensors}
    assert all(extent.pooled for extent in extents)
    assert len(extents) < 20
    assert extent_at(model.weight.data_ptr(), 4).pooled
    assert int(tensors[500][3]) == 500
    outside = torch.empty(1000, device="cuda")
    assert not extent_at(outside.data_ptr(), 4).pooled


# ---------------------------------------------------------------------------------- two processes
@pytest.mark.parametrize("kind", ["pool", "plain", "mempool"])
def test_between_two_processes(engine: Engine, record_property: Any, kind: str):
    """VMM handles by descriptor, legacy IPC handles: both ways, whole and in part."""
    with GpuPeer(kind, COUNT) as peer:
        into = torch.zeros(COUNT, dtype=torch.int32, device="cuda")
        transfer = engine.read(peer.remote, into=into).wait(WAIT)
        note(record_property, transfer)
        assert torch.equal(into, pattern(COUNT))
        engine.write(pattern(COUNT, 5), to=peer.remote).wait(WAIT)
        assert peer.holds(5)
        part = torch.zeros(1000, dtype=torch.int32, device="cuda")
        engine.read(peer.remote[12345 : 12345 + 1000], into=part).wait(WAIT)
        assert torch.equal(part, pattern(COUNT, 5)[12345 : 12345 + 1000])


def test_to_and_from_host_memory(engine: Engine, record_property: Any):
    with GpuPeer("plain", COUNT) as peer:
        host = torch.zeros(COUNT, dtype=torch.int32)
        note(record_property, engine.read(peer.remote, into=host).wait(WAIT))
        assert torch.equal(host, pattern(COUNT).cpu())
        engine.write(pattern(COUNT, 3).cpu(), to=peer.remote).wait(WAIT)
        assert peer.holds(3)


def test_expandable_segments(engine: Engine, record_property: Any):
    """B9: a tensor over several chunks of torch's."""
    count = 32 * MIB  # 128 MiB
    with GpuPeer("plain", count, EXPANDABLE) as peer:
        assert peer.pieces >= 3, "torch did not take several chunks"
        into = torch.zeros(count, dtype=torch.int32, device="cuda")
        note(record_property, engine.read(peer.remote, into=into).wait(WAIT))
        assert torch.equal(into, pattern(count))
        engine.write(pattern(count, 9), to=peer.remote).wait(WAIT)
        assert peer.holds(9)


def test_staged_through_host_memory(record_property: Any):
    """Two engines that have nothing but sockets between them: both ends a GPU's, or one."""
    ways = {"providers": ("tcp", "staged"), "listen": "127.0.0.1:0", "secret": "of this test only"}
    count = 64 * MIB  # 256 MiB: 256 chunks
    with transport.Engine(**ways) as engine, GpuPeer("plain", count, **ways) as peer:
        into = torch.zeros(count, dtype=torch.int32, device="cuda")
        transfer = engine.read(peer.remote, into=into).wait(WAIT)
        note(record_property, transfer)
        assert transfer.path == "staged over tcp"
        assert torch.equal(into, pattern(count))
        engine.write(pattern(count, 2), to=peer.remote).wait(WAIT)
        assert peer.holds(2)
        host = torch.zeros(count, dtype=torch.int32)
        again = engine.read(peer.remote, into=host).wait(WAIT)
        assert torch.equal(host, pattern(count, 2).cpu())
        record_property("one_copy_s", again.elapsed)
        # Where copies and wire overlap the second copy costs little: for the reader to compare.
        record_property("two_copies_s", engine.read(peer.remote, into=into).wait(WAIT).elapsed)


# ------------------------------------------------------------------------------------------- order
@pytest.mark.parametrize("named", [False, True])
def test_a_long_kernel_comes_first(engine: Engine, named: bool):
    """J1: no synchronization between the kernel and the transfer."""
    side = torch.cuda.Stream()
    with GpuPeer("plain", COUNT) as peer:
        for round_ in range(3):
            source, wanted = torch.zeros(COUNT, dtype=torch.int32, device="cuda"), 20 + round_
            fresh = pattern(COUNT, wanted)
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(LONG_KERNEL)
                source.copy_(fresh)
                if not named:
                    transfer = engine.write(source, to=peer.remote)
            if named:
                transfer = engine.write(source, to=peer.remote, stream=side)
            assert not transfer.done, "the kernel was too short to tell"
            transfer.wait(WAIT)
            assert peer.holds(wanted)


def test_a_stream_waits_for_a_transfer(engine: Engine):
    with GpuPeer("plain", COUNT) as peer:
        for round_ in range(20):
            peer.put(round_)
            into = torch.zeros(COUNT, dtype=torch.int32, device="cuda")
            stream = torch.cuda.current_stream()
            doubled = engine.read(peer.remote, into=into).wait_on(stream) and into * 2
            assert torch.equal(doubled, pattern(COUNT, round_) * 2)


def test_a_thread_that_never_touched_cuda(engine: Engine):
    """H3"""
    import threading

    errors: list[BaseException] = []
    with GpuPeer("pool", COUNT) as peer:
        into = torch.zeros(COUNT, dtype=torch.int32, device="cuda")

        def read() -> None:
            try:
                engine.read(peer.remote, into=into, stream=0).wait(WAIT)
            except BaseException as error:
                errors.append(error)

        torch.cuda.synchronize()
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        assert not errors
        assert torch.equal(into, pattern(COUNT))


# ------------------------------------------------------------------------------------------- ends
def test_registering_leaves_nothing(engine: Engine):
    tensor = make(engine, "plain", COUNT)
    engine.register(tensor).close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(1000):
        engine.register(tensor).close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_exit_with_tensors_alive():
    """F8, M#2219: interpreter exit with live buffers, in every order of what is torn down."""
    program = """
import torch, transport
engine = transport.Engine()
tensor = engine.empty(1 << 20, torch.uint8, device="cuda")
region = engine.register(tensor)
with transport.gpu_pool():
    other = torch.zeros(1000, device="cuda")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
