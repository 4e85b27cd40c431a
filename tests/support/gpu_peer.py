"""The other process of tests and benchmarks on a real GPU: an engine with a tensor on the GPU.

Started with `spawn`; needs a torch that sees a GPU.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any

from transport.types import Closing

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from transport import Engine

_PATIENCE = 60.0


def pattern(count: int, seed: int = 0) -> Any:
    """An int32 tensor on the GPU that differs everywhere."""
    import torch

    return torch.arange(count, dtype=torch.int32, device="cuda") * 7 + seed


def make(engine: Engine, kind: str, count: int) -> Any:
    """A tensor of that many int32: of our pool, of torch's allocator (whatever it is told to use),
    or of torch's allocator over our segments.
    """
    import torch

    import transport

    if kind == "pool":
        return engine.empty(count, torch.int32, device="cuda")
    if kind == "mempool":
        with transport.gpu_pool():
            return torch.empty(count, dtype=torch.int32, device="cuda")
    return torch.empty(count, dtype=torch.int32, device="cuda")


def _serve(pipe: Connection[Any, Any], kind: str, count: int, options: dict[str, Any]) -> None:
    import torch

    import transport
    from transport.memory.gpu import extent_at

    with transport.Engine(**options) as engine:
        tensor = make(engine, kind, count)
        tensor.copy_(pattern(count))
        torch.cuda.synchronize()
        with engine.register(tensor) as region:
            pieces = extent_at(tensor.data_ptr(), tensor.nbytes).pieces
            pipe.send((region.remote(), region.explain(), pieces))
            while (seed := pipe.recv()) is not None:
                if isinstance(seed, tuple):  # put this there
                    tensor.copy_(pattern(count, seed[0]))
                    torch.cuda.synchronize()
                    pipe.send(True)
                else:  # is it that?
                    pipe.send(bool(torch.equal(tensor, pattern(count, seed))))
        del tensor


class GpuPeer(Closing):
    """A process with a tensor of `count` int32, which holds pattern(count)."""

    def __init__(
        self, kind: str, count: int, environment: dict[str, str] | None = None, **options: Any
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        before = {name: os.environ.get(name) for name in environment or {}}
        os.environ.update(environment or {})
        try:
            self._process = context.Process(target=_serve, args=(theirs, kind, count, options))
            self._process.start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        theirs.close()
        self.remote, self.explained, self.pieces = self._answer()

    def put(self, seed: int) -> None:
        self._pipe.send((seed,))
        self._answer()

    def holds(self, seed: int) -> bool:
        """Whether the tensor is pattern(count, seed) now."""
        self._pipe.send(seed)
        return bool(self._answer())

    def close(self) -> None:
        if self._process.is_alive():
            self._pipe.send(None)
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()

    def _answer(self) -> Any:
        if not self._pipe.poll(_PATIENCE):
            raise TimeoutError("the other process does not answer")
        return self._pipe.recv()
