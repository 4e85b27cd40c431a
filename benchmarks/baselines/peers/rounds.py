"""Measures cases: every way has its turn in each round, and the one that begins changes.

Before a case each side that is written is cleared and each side that is read gets a pattern of its
own; after the last round the bytes are compared.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.baselines.peers.conductor import Command, DriverFailed, Pair
from benchmarks.baselines.peers.ways import LIBRARIES, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_WARM_UP = 3  # submissions, where one takes less than a turn
_FEWEST, _MOST = 2, 2000  # submissions in a turn
MOST_BYTES = 256 << 20  # that one submission moves


@dataclass(frozen=True)
class Case:
    """What every way is asked to move; `asked` is the batch before it was cut to fit the memory."""

    size: int
    batch: int
    asked: int

    @classmethod
    def cut(cls, size: int, batch: int, most: int = MOST_BYTES) -> Case:
        return cls(size, max(1, min(batch, most // size)), batch)

    @property
    def bytes(self) -> int:
        return self.size * self.batch


@dataclass
class Found:
    """The times of one way at one case, by round; or why there are none."""

    way: Way
    case: Case
    rounds: list[list[int]] = field(default_factory=list)  # ns of each submission
    verified: bool = False
    reason: str = ""


@dataclass
class Contender:
    """A way whose processes run, or the reason why they do not."""

    way: Way
    pair: Pair | None = None
    version: str = ""
    reason: str = ""

    def fail(self, error: DriverFailed) -> None:
        """Its processes end; it has no more turns."""
        self.reason = str(error)
        if self.pair is not None:
            self.pair.kill()
            self.pair = None


def start(
    way: Way, command: Command, nbytes: int, logs: Path, options: dict[str, Any]
) -> Contender:
    """Starts and joins both sides, with a buffer of so many bytes in each."""
    library = LIBRARIES[way.library]
    contender = Contender(way)
    log = logs / way.name.replace(" ", "-").lower()
    try:
        contender.pair = Pair(command, log, alone=library.alone, spins=library.spins)
        with contender.pair.turn():
            secret = secrets.token_hex(32)
            contender.version = contender.pair.open(
                bytes=nbytes, op=way.op, secret=secret, **options
            )
    except DriverFailed as error:
        contender.fail(error)
    return contender


def measure(
    contenders: Sequence[Contender], case: Case, rounds: int, seconds: float, seed: int
) -> list[Found]:
    """One `Found` for each contender, whatever became of it. A turn lasts about `seconds`."""
    found = [Found(it.way, case, reason=it.reason) for it in contenders]
    turns = [_Turns(it, mine, seed, seconds) for it, mine in zip(contenders, found)]
    for each in turns:
        each.attempt(each.prepare)
    for turn in range(rounds):
        first = turn % len(turns)
        for each in turns[first:] + turns[:first]:
            each.attempt(each.run)
    for each in turns:
        each.attempt(each.check)
    return found


@dataclass
class _Turns:
    contender: Contender
    found: Found
    seed: int
    seconds: float
    count: int = _FEWEST

    def attempt(self, step: Callable[[Pair], None]) -> None:
        pair = self.contender.pair
        if pair is None:
            return
        try:
            with pair.turn():
                step(pair)
        except DriverFailed as error:
            self.found.reason, self.found.verified = str(error), False
            self.contender.fail(error)

    def prepare(self, pair: Pair) -> None:
        case = self.found.case
        pair.both("prepare", size=case.size, batch=case.batch)
        writes = self.contender.way.op == "write"
        source, sink = (pair.initiator, pair.target)[:: 1 if writes else -1]
        if source is not sink:
            sink.ask("clear")
        source.ask("fill", seed=self.seed)
        worth = self.seconds * 1e9
        [once] = pair.both("run", count=1)[0]["ns"]
        if once < worth:
            once = min(pair.both("run", count=_WARM_UP)[0]["ns"])
        self.count = max(_FEWEST, min(_MOST, int(worth / max(1, once))))

    def run(self, pair: Pair) -> None:
        self.found.rounds.append(pair.both("run", count=self.count)[0]["ns"])

    def check(self, pair: Pair) -> None:
        writes = self.contender.way.op == "write"
        sink = pair.target if writes else pair.initiator
        self.found.verified = bool(sink.ask("verify", seed=self.seed)["right"])


@contextlib.contextmanager
def closing(contenders: Sequence[Contender]) -> Any:
    """Whatever happens, no process stays."""
    try:
        yield contenders
    finally:
        for it in contenders:
            if it.pair is not None:
                it.pair.close()
