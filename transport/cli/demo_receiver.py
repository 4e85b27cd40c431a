"""The second process of the demo: pulls the model out of the first one and checks every byte.

One engine per provider; tensors by their real dtypes and shapes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transport.cli import child
from transport.cli.bench_side import open_engine
from transport.cli.copy_limit import CopyBuffers, one_copy_each
from transport.cli.demo_model import ONE_BY_ONE, digest, like, spoil
from transport.errors import InvalidUse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

    from transport.engine.engine import Engine
    from transport.engine.transfer import Transfer
    from transport.memory.remote import RemoteRegion


@dataclass(frozen=True, slots=True)
class Pull:
    """One pull of the whole model."""

    seconds: float
    copy_ns: Mapping[str, int]  # as many bytes, right after, by each way this machine can copy
    provider: str
    path: str
    wrong: tuple[str, ...]  # tensors whose digest differs


def receive(pipe: Connection, secret: bytes) -> None:
    """What the second process runs."""
    receiver = Receiver(secret)
    try:
        child.serve(
            pipe, {"connect": receiver.connect, "prepare": receiver.prepare, "pull": receiver.pull}
        )
    finally:
        receiver.close()


@dataclass
class Receiver:
    """The state between the parent's questions."""

    secret: bytes
    provider: str = ""
    engine: Engine | None = None
    handles: Mapping[str, RemoteRegion] = field(default_factory=dict[str, Any])
    digests: Mapping[str, str] = field(default_factory=dict[str, str])
    tensors: dict[str, Any] = field(default_factory=dict[str, Any])
    copies: CopyBuffers | None = None

    def connect(self, provider: str, address: str) -> None:
        """A new engine for this provider, connected to the sender's."""
        self.close()
        self.provider = provider
        engine = open_engine("receiver", provider, secret=self.secret)
        self.engine = engine
        engine.connect(address)

    def prepare(
        self, memory: str, handles: Mapping[str, RemoteRegion], digests: Mapping[str, str]
    ) -> None:
        """Room for the tensors that these handles name."""
        engine = self._engine()
        self.handles, self.digests = handles, digests
        self.tensors = {
            name: like(engine, remote.shape, _torch_dtype(remote.dtype), memory)
            for name, remote in handles.items()
        }
        if self.copies is None:
            self.copies = CopyBuffers(sum(remote.nbytes for remote in handles.values()))

    def pull(self, mode: str) -> Pull:
        """The whole model, timed; then the digests and this machine's copy of as many bytes."""
        for tensor in self.tensors.values():
            spoil(tensor)
        begin = time.perf_counter()
        last = self._one_by_one() if mode == ONE_BY_ONE else self._one_batch()
        seconds = time.perf_counter() - begin
        size = sum(remote.nbytes for remote in self.handles.values())
        copies = one_copy_each(self.copies, size) if self.copies is not None else {}
        wrong = [name for name, it in self.tensors.items() if digest(it) != self.digests[name]]
        return Pull(seconds, copies, last.provider or "", last.path or "", tuple(wrong))

    def close(self) -> None:
        self.tensors = {}
        if self.copies is not None:
            self.copies.close()
            self.copies = None
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def _engine(self) -> Engine:
        if self.engine is None:
            raise InvalidUse("connect comes first")
        return self.engine

    def _one_by_one(self) -> Transfer:
        engine, last = self._engine(), None
        for name, remote in self.handles.items():
            last = engine.read(remote, self.tensors[name], provider=self.provider).wait()
        if last is None:
            raise InvalidUse("there is no tensor to pull")
        return last

    def _one_batch(self) -> Transfer:
        from transport.engine.batch import Read

        requests = [Read(remote, self.tensors[name]) for name, remote in self.handles.items()]
        return self._engine().submit(requests, provider=self.provider).wait()


def _torch_dtype(name: Any) -> Any:
    import torch

    return getattr(torch, str(name).removeprefix("torch."))
