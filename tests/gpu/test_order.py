"""What comes before a transfer of GPU memory and what after it: streams, flushes, visibility."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transport import Read, Write
from transport.errors import DeadlineExceeded, InvalidUse, PeerLost, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fakeverbs import Double
    from gpu_double import GpuDouble

    from transport import Engine

WAIT = 30.0
OLD, NEW = b"\x11", b"\x22"


class Ends:
    """A buffer on the GPU and one at a peer."""

    def __init__(self, gpu: GpuDouble, engine: Callable[..., Engine], nbytes: int = 4096) -> None:
        self.near, self.far = engine(), engine()
        self.source = gpu.new((nbytes,))
        gpu.write(self.source, OLD * nbytes)
        self.target = bytearray(nbytes)
        self.region = self.far.register(self.target)
        self.remote = self.region.remote()
        self.near.write(self.source, to=self.remote).wait(WAIT)  # connected
        self.target[:] = bytes(nbytes)

    def kernel(self, gpu: GpuDouble, stream: int) -> None:
        """One that is still running when this returns."""
        gpu.ctl("hold", 1)
        gpu.fill(self.source.data_ptr(), NEW[0], len(self.target), stream)


@pytest.fixture
def ends(gpu: GpuDouble, engine: Callable[..., Engine]) -> Ends:
    return Ends(gpu, engine)


class CudaStream:
    """What has the protocol of cuda.core and CuPy."""

    def __init__(self, handle: int, version: int | None = 0) -> None:
        self.handle, self.version = handle, version

    def __cuda_stream__(self) -> Any:
        return (self.version, self.handle) if self.version is not None else None


class TorchStream:
    """What torch.cuda.Stream has."""

    def __init__(self, handle: int, index: Any = 0) -> None:
        self.cuda_stream = handle
        self.device = type("D", (), {"index": index})()


@pytest.mark.parametrize("kind", [int, CudaStream, TorchStream])
def test_a_kernel_that_still_runs_comes_first(gpu: GpuDouble, ends: Ends, kind: Any):
    """J1: submitted at once after a long kernel, with no synchronization anywhere."""
    stream = gpu.stream()
    ends.kernel(gpu, stream)
    begun = time.monotonic()
    transfer = ends.near.write(ends.source, to=ends.remote, stream=kind(stream))
    assert time.monotonic() - begun < WAIT / 2, "submit waited for the GPU"
    time.sleep(0.05)
    assert not transfer.done
    assert bytes(ends.target) == bytes(4096)
    gpu.ctl("hold", 0)
    transfer.wait(WAIT)
    assert bytes(ends.target) == NEW * 4096


def test_the_default_stream_is_followed_without_being_named(gpu: GpuDouble, ends: Ends):
    ends.kernel(gpu, 0)
    transfer = ends.near.write(ends.source, to=ends.remote)
    gpu.ctl("hold", 0)
    transfer.wait(WAIT)
    assert bytes(ends.target) == NEW * 4096


def test_nobody_need_wait_for_it(gpu: GpuDouble, ends: Ends):
    """The native thread begins it, when no thread of Python's is in a call."""
    ends.kernel(gpu, 0)
    transfer = ends.near.write(ends.source, to=ends.remote)
    gpu.ctl("hold", 0)
    end = time.monotonic() + WAIT
    while not transfer.done and time.monotonic() < end:
        time.sleep(0.005)
    assert transfer.status == "ok"
    assert bytes(ends.target) == NEW * 4096


def test_where_the_driver_cannot_call_back(gpu: GpuDouble, ends: Ends):
    gpu.fail("cuLaunchHostFunc", "hipLaunchHostFunc", code=801)
    ends.kernel(gpu, 0)
    transfer = ends.near.write(ends.source, to=ends.remote)
    time.sleep(0.02)
    assert not transfer.done
    gpu.ctl("hold", 0)
    transfer.wait(WAIT)
    assert bytes(ends.target) == NEW * 4096


def test_a_stream_for_host_memory(gpu: GpuDouble, ends: Ends):
    """Pinned memory that a copy is still filling, say."""
    stream, source = gpu.stream(), bytearray(OLD * 4096)
    ends.kernel(gpu, stream)
    transfer = ends.near.write(source, to=ends.remote, stream=stream)
    time.sleep(0.02)
    assert not transfer.done
    source[:] = NEW * 4096
    gpu.ctl("hold", 0)
    transfer.wait(WAIT)
    assert bytes(ends.target) == NEW * 4096


def test_a_batch_and_a_prepared_transfer(gpu: GpuDouble, ends: Ends):
    requests = [Write(ends.source, ends.remote), Read(ends.remote, bytearray(4096))]
    ends.kernel(gpu, 0)
    transfer = ends.near.submit(requests[:1], notify=b"new")
    gpu.ctl("hold", 0)
    transfer.wait(WAIT)
    assert bytes(ends.target) == NEW * 4096
    with ends.near.prepare(requests[:1]) as prepared:
        for value in (3, 4, 5):
            stream = gpu.stream()
            gpu.ctl("hold", 1)
            gpu.fill(ends.source.data_ptr(), value, 4096, stream)
            prepared.start(stream=stream)
            time.sleep(0.01)
            assert not prepared.done
            gpu.ctl("hold", 0)
            prepared.wait(WAIT)
            assert set(ends.target) == {value}
        gpu.fill(ends.source.data_ptr(), 6, 4096, 0)
        prepared.run()
        assert set(ends.target) == {6}


def test_what_does_not_wait_for_each_other(gpu: GpuDouble, ends: Ends):
    """A fence behind a long kernel holds nothing up that came later."""
    ends.kernel(gpu, gpu.stream())
    slow = ends.near.write(ends.source, to=ends.remote, stream=0)
    quick = ends.near.write(bytearray(b"q" * 4096), to=ends.remote)
    quick.wait(WAIT)
    assert bytes(ends.target) == b"q" * 4096
    assert not slow.done or slow.status == "ok"
    gpu.ctl("hold", 0)
    slow.wait(WAIT)


def test_a_deadline_counts_from_submission(gpu: GpuDouble, ends: Ends):
    ends.kernel(gpu, 0)
    transfer = ends.near.write(ends.source, to=ends.remote, deadline=0.1)
    with pytest.raises(DeadlineExceeded):
        transfer.wait(WAIT)
    assert transfer.quiet  # it never began
    gpu.ctl("hold", 0)
    gpu.sync(0)
    assert bytes(ends.target) == bytes(4096)


def test_cancel_and_loss_while_it_waits(gpu: GpuDouble, ends: Ends):
    ends.kernel(gpu, 0)
    transfer = ends.near.write(ends.source, to=ends.remote)
    transfer.cancel()
    assert transfer.status == "cancelled"
    lost = ends.near.write(ends.source, to=ends.remote)
    ends.far.close()
    with pytest.raises(PeerLost):
        lost.wait(WAIT)
    gpu.ctl("hold", 0)


def test_an_engine_closes_with_transfers_that_wait(gpu: GpuDouble, ends: Ends):
    ends.kernel(gpu, 0)
    transfer = ends.near.write(ends.source, to=ends.remote)
    threading.Timer(0.2, gpu.ctl, ("hold", 0)).start()
    before = gpu.get("streams"), gpu.get("events")
    ends.near.close()
    with pytest.raises(TransportError):
        transfer.wait(WAIT)
    assert gpu.get("streams") < before[0]
    assert gpu.get("events") < before[1]


def test_no_stream_is_refused(gpu: GpuDouble, ends: Ends):
    odd = [CudaStream(0, version) for version in (7, None)]
    odd_devices = [TorchStream(0, index) for index in ("a", -1, 1.5, 1 << 40)]
    for wrong in (-1, True, "0", 1.5, 1 << 64, *odd, *odd_devices):
        with pytest.raises(InvalidUse, match="stream"):
            ends.near.write(ends.source, to=ends.remote, stream=wrong)
    ends.near.write(ends.source, to=ends.remote, stream=np.int64(0)).wait(WAIT)


def test_streams_and_events_are_used_again(gpu: GpuDouble, ends: Ends):
    before = gpu.get("streams"), gpu.get("events")
    for _ in range(50):
        gpu.fill(ends.source.data_ptr(), 7, 4096, 0)
        ends.near.write(ends.source, to=ends.remote).wait(WAIT)
    assert gpu.get("streams") <= before[0] + 2
    assert gpu.get("events") <= before[1] + 2


# --------------------------------------------------------------------------------------- afterwards
def test_a_stream_waits_for_a_transfer(gpu: GpuDouble, double: Double, ends: Ends):
    """The GPU waits for the bytes; this thread does not."""
    stream, copy = gpu.stream(), gpu.alloc(4096)
    ends.target[:] = NEW * 4096
    double.put("hold", 1)  # the NIC
    transfer = ends.near.read(ends.remote, into=ends.source)
    transfer.wait_on(stream)
    gpu.fill(copy, 1, 4096, stream)
    time.sleep(0.05)
    assert not transfer.done
    assert gpu.bytes_at(copy, 4096) == bytes(4096)
    double.put("hold", 0)
    gpu.sync(stream)
    assert gpu.bytes_at(copy, 4096) == b"\x01" * 4096
    assert transfer.done
    assert gpu.read(ends.source) == NEW * 4096


def test_the_stream_goes_on_after_a_failure(gpu: GpuDouble, double: Double, ends: Ends):
    stream = gpu.stream()
    double.put("hold", 1)
    transfer = ends.near.read(ends.remote, into=ends.source)
    transfer.wait_on(stream)
    double.put("hold", 0)
    ends.far.close()
    gpu.sync(stream)
    assert transfer.done


def test_it_is_quiet_already(gpu: GpuDouble, ends: Ends):
    transfer = ends.near.read(ends.remote, into=ends.source).wait(WAIT)
    assert transfer.wait_on(gpu.stream()) is transfer


def test_the_host_waits_where_the_driver_cannot(gpu: GpuDouble, ends: Ends):
    gpu.fail("cuStreamWaitValue32_v2", "hipStreamWaitValue32", code=801)
    ends.target[:] = NEW * 4096
    transfer = ends.near.read(ends.remote, into=ends.source)
    transfer.wait_on(0)
    assert transfer.done


def test_a_nics_writes_are_flushed_where_the_gpu_does_not_order_them(
    gpu: GpuDouble, engine: Callable[..., Engine]
):
    """J2: for reads into GPU memory, and before a notification of a peer's write. HIP has neither
    the attribute nor the call."""
    flushes = gpu.platform == "cuda" and gpu.get("writes_ordering") == 0
    ends = Ends(gpu, engine)
    before = gpu.get("flushes")
    ends.near.read(ends.remote, into=ends.source).wait(WAIT)
    assert (gpu.get("flushes") > before) == flushes
    before = gpu.get("flushes")
    ends.near.write(ends.source, to=ends.remote).wait(WAIT)
    assert gpu.get("flushes") == before  # nothing came into a GPU
    region = ends.near.register(ends.source)
    ends.far.write(bytearray(4096), to=region.remote(), notify=b"x").wait(WAIT)
    assert ends.near.notifications().wait(WAIT).payload == b"x"
    assert (gpu.get("flushes") > before) == flushes


# HIP has no such attribute: there one stands for all.
@pytest.mark.parametrize(
    "ordering", [0, 100, 200] if os.environ.get("TN_GPU_DOUBLE", "cuda") == "cuda" else [0]
)
def test_every_writes_ordering(gpu: GpuDouble, ordering: int):
    """NONE, OWNER, ALL_DEVICES: what the driver says is asked once in a process."""
    name = test_a_nics_writes_are_flushed_where_the_gpu_does_not_order_them.__name__
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"{__file__}::{name}",
    ]
    environment = {**os.environ, "FAKEGPU": f"writes_ordering={ordering}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "1 passed" in done.stdout


def test_steps_that_run_without_python(gpu: GpuDouble, ends: Ends):
    """What syncs of weights are made of."""
    from transport.engine.sequence import Step, Steps

    marker = bytearray(8)
    other = ends.far.register(bytearray(b"expected"))
    first = ends.near.prepare([Write(ends.source, ends.remote)])
    second = ends.near.prepare([Read(other.remote(), marker)])
    steps = Steps(ends.near._core, [Step([first]), Step([second], marker, b"expected")])
    for value in (3, 4):
        gpu.ctl("hold", 1)
        gpu.fill(ends.source.data_ptr(), value, 4096, 0)
        threading.Timer(0.05, gpu.ctl, ("hold", 0)).start()
        assert steps.run(WAIT)
        assert set(ends.target) == {value}
    gpu.ctl("hold", 1)
    gpu.fill(ends.source.data_ptr(), 5, 4096, 0)
    assert not steps.run(0.05)  # the second was not begun
    gpu.ctl("hold", 0)
    with pytest.raises(DeadlineExceeded):
        first.wait(WAIT)
    first.close()
    second.close()
    assert set(ends.target) == {4}
