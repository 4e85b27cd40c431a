"""The contract that every provider keeps: rules as pytest tests, plugged in by a class attribute.

    from transport.testing.contract import Contract, Way

    class TestMine(Contract):
        way = Way("mine", "mine-path", near={"providers": ("mine",)}, far={"providers": ("mine",)})

May import everything of the package and pytest. The far side is another process, so that the rules
hold where they matter; both sides are shared by the tests of a class, and a test that breaks one
makes its own (`fresh`).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from transport.engine.engine import Engine
from transport.errors import StaleRegion, TransferError
from transport.testing.contract_atomics import AtomicRules
from transport.testing.contract_blocks import BlockRules
from transport.testing.contract_data import DataRules
from transport.testing.contract_ends import EndRules
from transport.testing.contract_prepared import PreparedRules
from transport.testing.contract_refusals import RefusalRules
from transport.testing.contract_waiting import WaitingRules
from transport.testing.processes import PeerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from transport.memory.remote import RemoteRegion


@dataclass(frozen=True)
class Way:
    """One way of moving bytes, and how to bring it about."""

    provider: str
    path: str
    """What Transfer.path says."""
    pool: bool = False
    """Whether the far memory comes from Engine.empty."""
    near: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of Engine on this side."""
    far: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of Engine on the other side."""
    prepare: str = ""
    """Python text that the far process runs before it opens an engine."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the far process."""
    launcher: tuple[str, ...] = ()
    """A command that starts the far process in another place: `ip netns exec NAME`."""
    atomics: bool = False
    """Whether it has atomic operations."""
    stale: tuple[type[TransferError], ...] = (StaleRegion,)
    """What a transfer with a closed region raises: a NIC only tells that it refused."""


class FarSide(PeerProcess):
    """The other process, with its engine open."""

    def __init__(self, way: Way, **options: Any) -> None:
        super().__init__(*way.launcher, **way.environment)
        self.way = way
        if way.prepare:
            self.call("run", way.prepare)
        self.incarnation, self.addresses = self.reopen(**options)

    def reopen(self, **options: Any) -> tuple[bytes, tuple[str, ...]]:
        """A new engine in the same process."""
        found: tuple[bytes, tuple[str, ...]] = self.call("open", **{**self.way.far, **options})
        self.incarnation, self.addresses = found
        return found

    def make(self, name: str, nbytes: int, **options: Any) -> RemoteRegion:
        """Registered memory with a pattern in it (see Servant.make), of the way's kind."""
        remote: RemoteRegion = self.call("make", name, nbytes, **{"pool": self.way.pool, **options})
        return remote

    def content(self, name: str) -> bytes:
        content: bytes = self.call("content", name)
        return content

    def rest(self) -> bool:
        """Closes its engine, or the process where it cannot open another; whether it can."""
        if self.process.poll() is not None or self.owed:
            self.close()
            return False
        self.go_on()
        self.call("close")
        return True


class Contract(
    AtomicRules, BlockRules, DataRules, PreparedRules, RefusalRules, WaitingRules, EndRules
):
    """All rules. A subclass whose name begins with Test sets `way`."""

    way: Way

    @pytest.fixture(scope="class")
    @classmethod
    def near(cls) -> Iterator[Engine]:
        """The engine of this process, which begins every transfer."""
        with Engine(**cls.way.near) as engine:
            yield engine

    @pytest.fixture(scope="class")
    @classmethod
    def far(cls) -> Iterator[FarSide]:
        """The other process, shared: leave it as it was."""
        with FarSide(cls.way) as process:
            yield process

    @pytest.fixture(scope="class")
    @classmethod
    def spare(cls) -> Iterator[list[FarSide]]:
        """Far processes that tests left alive: to start one takes longer than most rules."""
        with contextlib.ExitStack() as stack:
            idle: list[FarSide] = []
            yield idle
            for process in idle:
                stack.push(process)

    @pytest.fixture
    def fresh(self, spare: list[FarSide]) -> Iterator[Callable[..., FarSide]]:
        """Makes far sides, each with a new engine, that a test may stop and kill."""
        with contextlib.ExitStack() as stack:

            def retire(process: FarSide) -> None:
                if process.rest():
                    spare.append(process)

            def make(**options: Any) -> FarSide:
                process = spare.pop() if spare else FarSide(self.way)
                stack.callback(retire, process)
                process.reopen(**options)
                return process

            yield make

    @pytest.fixture
    def own(self) -> Iterator[Engine]:
        """An engine of this process that a test may close."""
        with Engine(**self.way.near) as engine:
            yield engine
