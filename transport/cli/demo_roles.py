"""The actors of the demo: trainers, which publish their shards, and readers, which fetch theirs.

May import mesh, engine, weights and the demo's model. Trainers take no part in a fetch.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.cli.bench_side import listen_for, open_engine, pick_address
from transport.cli.copy_limit import KINDS, CopyBuffers
from transport.cli.demo_model import digest, layouts, like, place, sliced, spoil, step
from transport.errors import InvalidUse
from transport.mesh.actor import Actor, endpoint
from transport.mesh.context import current_rank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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


class Role(Actor):
    """The state between two calls: an engine, this rank's arrays, what is open."""

    def __init__(self, file: Path, secret: bytes) -> None:
        self.rank = current_rank().rank
        self.source, self.target = layouts(file)
        self._file = file
        self._secret = secret
        self._held = ExitStack()
        self.engine: Engine | None = None
        self.arrays: dict[str, Any] = {}

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    def anew(self, who: str, provider: str, **more: Any) -> Engine:
        """Another engine, instead of all that there was."""
        self.close()
        engine = open_engine(f"{who} {self.rank}", provider, secret=self._secret, **more)
        self.engine = self._held.enter_context(engine)
        return engine

    def __cleanup__(self, error: BaseException | None) -> None:
        self.close()

    def close(self) -> None:
        self.arrays, self.engine = {}, None
        self._held.close()


class Trainer(Role):
    """Publishes its shard; takes no part in a fetch."""

    publication: Publication | None = None

    @endpoint
    def open(self, provider: str, memory: str) -> str:
        """A new engine with this rank's shard, sliced from the file; where it is found."""
        self.publication = None
        engine = self.anew("trainer", provider, listen=listen_for(provider))
        self.arrays = place(engine, sliced(self._file, self.source, self.rank), memory)
        return pick_address(engine.addresses, provider)

    @endpoint
    def publish(self, version: int) -> None:
        """The first version is the file's; each further one a step later, in the same memory."""
        from transport.weights import publish

        if self.engine is None:
            raise InvalidUse("open comes first")
        if self.publication is not None:
            with self.publication.writing(version):
                step(self.arrays)
            return
        layout, rank = self.source, self.rank
        made = publish(
            self.engine, _NAME, self.arrays, version, layout=layout, rank=rank, mode="live"
        )
        self.publication = self._held.enter_context(made)


class Reader(Role):
    """Fetches its part, and copies as many bytes to compare."""

    subscription: Subscription | None = None
    copies: CopyBuffers | None = None

    @endpoint
    def open(self, provider: str, memory: str, sources: Sequence[str]) -> None:
        """A new engine with room for this rank's part."""
        from transport.weights import subscribe

        engine, target = self.anew("reader", provider), self.target
        self.arrays = {
            name: like(engine, shape, dtype, memory)
            for name, (shape, dtype) in target.local_shapes(self.rank).items()
        }
        self.subscription = self._held.enter_context(
            subscribe(engine, _NAME, self.arrays, sources, layout=target, rank=self.rank)
        )
        self.copies = self._held.enter_context(CopyBuffers(self.nbytes))

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    @endpoint
    def fetch(self, version: int, digests: Sequence[Mapping[str, str]], at: float) -> Sync:
        """One version, from CLOCK_MONOTONIC `at` on; then the digests, which are by reader."""
        if self.subscription is None:
            raise InvalidUse("open comes first")
        for array in self.arrays.values():
            spoil(array)
        _wait_until(at)
        found = self.subscription.fetch(version)
        ended = time.monotonic()
        right = digests[self.rank]
        wrong = tuple(name for name, it in self.arrays.items() if digest(it) != right[name])
        return Sync(found.version, found.nbytes, ended, dict(found.carried), wrong)

    @endpoint
    def copy(self, kind: str, at: float) -> float | None:
        """When a copy of as many bytes by one thread has ended, or None: there is no such copy."""
        if self.copies is None:
            raise InvalidUse("open comes first")
        _wait_until(at)
        times = self.copies.times(self.nbytes, kind, 1, 1)
        return time.monotonic() if times else None


COPIES = tuple(KINDS)


def _wait_until(at: float) -> None:
    """So that all readers begin at once."""
    time.sleep(max(at - time.monotonic(), 0.0))
