"""Plans and batches over GPU memory; several GPUs; threads that never touched one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transport import Blocks, Read, Write
from transport.sharding.execute import Execution
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Shard
from transport.sharding.state import StateLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_double import GpuDouble

    from transport import Engine

WAIT = 30.0


def test_a_plan_from_gpu_to_gpu(gpu: GpuDouble, engine: Callable[..., Engine]):
    """Two row shards become two column shards."""
    theirs, ours = engine(), engine()
    whole = np.arange(16 * 8, dtype=np.int32).reshape(16, 8)
    source, target = (
        StateLayout({"w": Layout.placed((16, 8), "int32", Mesh((2,)), [Shard(dim)])})
        for dim in (0, 1)
    )
    shards = {rank: {"w": gpu.new((8, 8), "int32")} for rank in (0, 1)}
    for rank, local in shards.items():
        gpu.write(local["w"], whole[8 * rank : 8 * rank + 8].tobytes())
    handles = {rank: {"w": theirs.register(local["w"]).remote()} for rank, local in shards.items()}
    for rank in (0, 1):
        into = gpu.new((16, 4), "int32")
        with Execution(
            ours, source, target, rank, remote=handles, local={"w": into}, direction="pull"
        ) as execution:
            for _ in range(3):
                execution.run(WAIT)
        assert gpu.read(into) == whole[:, 4 * rank : 4 * rank + 4].tobytes()


def test_blocks_of_gpu_memory(gpu: GpuDouble, engine: Callable[..., Engine]):
    """KV pages: numbers in host memory, pages on the GPU."""
    near, far = engine(), engine()
    pages, cache = gpu.new((64, 256)), gpu.new((64, 256))
    data = np.random.default_rng(1).integers(0, 256, (64, 256), np.uint8)
    gpu.write(pages, data.tobytes())
    remote = far.register(cache).remote()
    order = np.random.default_rng(2).permutation(64)
    near.submit(
        [Write(Blocks(pages, pages=order[:40]), Blocks(remote, pages=order[::-1][:40]))]
    ).wait(WAIT)
    found = np.frombuffer(gpu.read(cache), np.uint8).reshape(64, 256)
    assert np.array_equal(found[order[::-1][:40]], data[order[:40]])


def test_a_mixed_batch(gpu: GpuDouble, engine: Callable[..., Engine]):
    near, far = engine(), engine()
    target = far.register(bytearray(300)).remote()
    on_gpu, on_host = gpu.new((100,)), bytearray(b"h" * 100)
    gpu.write(on_gpu, b"g" * 100)
    near.submit(
        [Write(on_gpu, target[:100]), Write(on_host, target[100:200]), Write(on_gpu, target[200:])]
    ).wait(WAIT)
    back = bytearray(300)
    near.submit([Read(target, back)]).wait(WAIT)
    assert bytes(back) == b"g" * 100 + b"h" * 100 + b"g" * 100


def test_two_gpus_in_one_transfer(gpu: GpuDouble, engine: Callable[..., Engine]):
    """It follows the streams of both."""
    near, far = engine(), engine()
    target = far.register(bytearray(2000)).remote()
    sources = []
    for device in (0, 1):
        gpu.use(device)
        sources.append(gpu.tensor(gpu.alloc(4096), (1000,), device=device))
    gpu.use(0)
    requests = [
        Write(source, target[1000 * i : 1000 * i + 1000]) for i, source in enumerate(sources)
    ]
    near.submit(requests).wait(WAIT)
    gpu.ctl("hold", 1)
    for device, value in ((0, 5), (1, 6)):
        gpu.use(device)
        gpu.fill(sources[device].data_ptr(), value, 1000, 0)
    gpu.use(0)
    transfer = near.submit(requests)
    assert not transfer.done
    gpu.ctl("hold", 0)
    transfer.wait(WAIT)
    back = bytearray(2000)
    near.read(target, into=back).wait(WAIT)
    assert bytes(back) == bytes([5]) * 1000 + bytes([6]) * 1000


def test_a_thread_that_never_touched_a_gpu(gpu: GpuDouble, engine: Callable[..., Engine]):
    """H3, M#2089: it has no current context, and gets none for good."""
    near, far = engine(), engine()
    remote = far.register(gpu.new((1000,))).remote()
    source, errors = gpu.new((1000,)), []
    gpu.write(source, b"t" * 1000)

    def work() -> None:
        try:
            near.write(source, to=remote).wait(WAIT)
            region = near.register(gpu.tensor(source.data_ptr(), (10,)))
            region.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    back = bytearray(1000)
    near.read(remote.bytes(), into=back).wait(WAIT)
    assert bytes(back) == b"t" * 1000


@pytest.mark.parametrize("rails", [1, 2])
def test_every_rail_has_it(gpu: GpuDouble, double: Any, engine: Callable[..., Engine], rails: int):
    double.put("devices", rails)
    near, far = engine(), engine()
    region = far.register(gpu.new((1 << 20,)))
    assert [line.split(": ")[1] for line in region.explain()] == rails * [
        "1 registration through dma-buf"
    ]
    double.put("fake0.dmabuf_errno", 95)
    other = far.register(gpu.new((1 << 20,)))
    lines = other.explain()
    assert "not registered" in lines[0]
    assert len(lines) == 2
    assert lines[1].startswith("staged: ") == (rails == 1)
    if rails == 2:
        near.write(bytearray(b"x" * (1 << 20)), to=other.remote()).wait(WAIT)
