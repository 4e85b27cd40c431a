"""The processes of the demo: trainers, which publish their shards, and readers, which fetch theirs.

May import engine, weights and the demo's model. Each is a child that answers the parent's questions
(child.serve); trainers take no part in a fetch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transport.cli import child
from transport.cli.bench_side import listen_for, open_engine, pick_address
from transport.cli.copy_limit import KINDS, CopyBuffers
from transport.cli.demo_model import digest, layouts, like, place, sliced, spoil, step
from transport.errors import InvalidUse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from transport.engine.engine import Engine
    from transport.weights.publication import Publication
    from transport.weights.subscription import Subscription

_NAME = "all-MiniLM-L6-v2"


@dataclass(frozen=True, slots=True)
class Sync:
    """One reader's fetch of one version."""

    version: int
    nbytes: int
    ended: float
    """CLOCK_MONOTONIC, which all processes share."""
    carried: Mapping[str, int]
    """Bytes by provider and path."""
    wrong: tuple[str, ...]
    """Tensors whose digest differs."""


def train(pipe: Connection, file: Path, rank: int, secret: bytes) -> None:
    """What a trainer's process runs."""
    trainer = Trainer(file, rank, secret)
    try:
        child.serve(pipe, {"open": trainer.open, "publish": trainer.publish})
    finally:
        trainer.close()


def read(pipe: Connection, file: Path, rank: int, secret: bytes) -> None:
    """What a reader's process runs."""
    reader = Reader(file, rank, secret)
    try:
        child.serve(pipe, {"open": reader.open, "fetch": reader.fetch, "copy": reader.copy})
    finally:
        reader.close()


@dataclass
class Trainer:
    """The state between the parent's questions."""

    file: Path
    rank: int
    secret: bytes
    engine: Engine | None = None
    arrays: dict[str, Any] = field(default_factory=dict[str, Any])
    publication: Publication | None = None

    def open(self, provider: str, memory: str) -> str:
        """A new engine with this rank's shard, sliced from the file; where it is found."""
        self.close()
        engine = open_engine(
            f"trainer {self.rank}", provider, secret=self.secret, listen=listen_for(provider)
        )
        self.engine = engine
        source, _ = layouts(self.file)
        self.arrays = place(engine, sliced(self.file, source, self.rank), memory)
        return pick_address(engine.addresses, provider)

    def publish(self, version: int) -> None:
        """The first version is the file's; each further one a step later, in the same memory."""
        from transport.weights import publish

        if self.engine is None:
            raise InvalidUse("open comes first")
        if self.publication is None:
            source, _ = layouts(self.file)
            self.publication = publish(
                self.engine,
                _NAME,
                self.arrays,
                version,
                layout=source,
                rank=self.rank,
                mode="live",
            )
            return
        with self.publication.writing(version):
            step(self.arrays)

    def close(self) -> None:
        self.arrays = {}
        if self.publication is not None:
            self.publication.close()
            self.publication = None
        if self.engine is not None:
            self.engine.close()
            self.engine = None


@dataclass
class Reader:
    """The state between the parent's questions."""

    file: Path
    rank: int
    secret: bytes
    engine: Engine | None = None
    arrays: dict[str, Any] = field(default_factory=dict[str, Any])
    subscription: Subscription | None = None
    copies: CopyBuffers | None = None

    def open(self, provider: str, memory: str, sources: Sequence[str]) -> None:
        """A new engine with room for this rank's part."""
        from transport.weights import subscribe

        self.close()
        engine = open_engine(f"reader {self.rank}", provider, secret=self.secret)
        self.engine = engine
        _, target = layouts(self.file)
        self.arrays = {
            name: like(engine, shape, dtype, memory)
            for name, (shape, dtype) in target.local_shapes(self.rank).items()
        }
        self.subscription = subscribe(
            engine, _NAME, self.arrays, sources, layout=target, rank=self.rank
        )
        self.copies = CopyBuffers(self.nbytes)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def fetch(self, version: int, digests: Mapping[str, str], at: float) -> Sync:
        """One version, from CLOCK_MONOTONIC `at` on; then the digests."""
        if self.subscription is None:
            raise InvalidUse("open comes first")
        for array in self.arrays.values():
            spoil(array)
        _wait_until(at)
        found = self.subscription.fetch(version)
        ended = time.monotonic()
        wrong = tuple(name for name, it in self.arrays.items() if digest(it) != digests[name])
        return Sync(found.version, found.nbytes, ended, dict(found.carried), wrong)

    def copy(self, kind: str, at: float) -> float | None:
        """When a copy of as many bytes by one thread has ended, or None: there is no such copy."""
        if self.copies is None:
            raise InvalidUse("open comes first")
        _wait_until(at)
        times = self.copies.times(self.nbytes, kind, 1, 1)
        return time.monotonic() if times else None

    def close(self) -> None:
        if self.subscription is not None:
            self.subscription.close()
            self.subscription = None
        self.arrays = {}
        if self.copies is not None:
            self.copies.close()
            self.copies = None
        if self.engine is not None:
            self.engine.close()
            self.engine = None


COPIES = tuple(KINDS)


def _wait_until(at: float) -> None:
    """So that all readers begin at once."""
    time.sleep(max(at - time.monotonic(), 0.0))
