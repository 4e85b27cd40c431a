"""Three ranks of torch.distributed over the backend of this package, of which one is killed. Each
of the others prints its rank, what a call raised, what a future had, and after how many seconds;
with "ddp": its rank, and what a backward pass raised that averages gradients meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

RANKS, VICTIM = 3, 1


def _say(*words):
    """In one piece: the ranks have one output."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _rank(rank, store):
    import transport.adapters.torch_distributed  # noqa: F401

    signal.alarm(90)
    dist.init_process_group(
        "transport", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS
    )
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    first = second = None
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    try:
        work.wait()
    except Exception as error:
        first = error
    took = time.monotonic() - begun
    try:
        future.wait()
    except Exception as error:
        second = error
    lost = "RankLost" in str(second)
    _say(rank, type(first).__name__, type(second).__name__, lost, f"{took:.2f}")
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


def _train(rank, store):
    import transport.adapters.torch_distributed  # noqa: F401

    signal.alarm(90)
    torch.set_num_threads(1)
    dist.init_process_group(
        "transport", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS
    )
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2)
    for _ in range(2):
        parallel(torch.ones(4, 512)).sum().backward()
    if rank == VICTIM:  # when the others wait for futures of several buckets
        next(model.parameters()).register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    try:
        parallel(torch.ones(4, 512)).sum().backward()
    except RuntimeError as error:
        _say(rank, "RankLost" in str(error))
    del parallel
    dist.destroy_process_group()


def _main():
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        children = {}
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    (_train if sys.argv[1:] == ["ddp"] else _rank)(rank, store)
                    code = 0
                finally:
                    os._exit(code)
            children[child] = rank
        codes = {}
        while children:
            child, status = os.wait()
            codes[children.pop(child)] = os.waitstatus_to_exitcode(status)
    sys.exit(codes != {0: 0, VICTIM: -signal.SIGKILL, 2: 0})


if __name__ == "__main__":
    _main()
