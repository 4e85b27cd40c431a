"""One generation of a communicator on this rank: its line, its carriers, its health.

May import everything in the room but communicator and tolerant.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from transport.collectives import bootstrap
from transport.collectives.card import Place
from transport.collectives.carriers import Carriers
from transport.collectives.health import Health
from transport.collectives.line import Line
from transport.collectives.operation import Operation
from transport.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidUse,
    RankLost,
    TransportError,
    Unavailable,
)
from transport.ffi import handle

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    import torch

    from transport.collectives.call import Call
    from transport.collectives.choice import Choice
    from transport.collectives.group import Group

_BLAME = 1.0  # seconds to find out who is behind what a carrier says
_ASKING = 0.3  # seconds for members to say how far they are
_SETTLING = 2.0  # seconds for what is under way when it is closed


class Kept:
    """What is kept of all-reduces that tolerate failures, from one generation to the next: how many
    have ended, and the sum of the last one. A rank that dies may leave some with a result and
    others without: these get it from those."""

    def __init__(self) -> None:
        self.count = 0
        self.result: torch.Tensor | None = None

    def finish(self, result: torch.Tensor) -> None:
        self.count += 1
        self.result = result


class Seat:
    """Between `open` and `close`, or until it is broken."""

    def __init__(self, group: Group, choice: Choice) -> None:
        try:
            from transport.collectives.arguments import Arguments
        except ImportError:
            raise Unavailable("a communicator needs torch", "pip install torch") from None
        self.group = group
        self.choice = choice
        self.arguments = Arguments(group.rank, group.size)
        self.carriers = Carriers(group, choice.of(group))
        self.line = Line(group.name, self._explain)
        self.health = Health(group, self._failed, self._place)
        self.kept = Kept()
        self.attempts = 0  # of regrouping
        self.closed = False
        self._pid = handle.here
        self._lock = threading.Lock()
        self._succession = threading.Lock()

    def open(self, devices: Iterable[str], deadline: float) -> None:
        """Makes the carriers for these. Raises RankLost, and what making them raises."""
        self.health.look()
        self.check()
        try:
            self.carriers.make_all(devices, deadline)
        except TransportError as error:
            if isinstance(error, (InvalidUse, Unavailable)):
                raise
            known = self.health.wait_failed(_BLAME)
            raise (known.again() if isinstance(known, RankLost) else error) from None

    def run(self, calls: Sequence[Call], result: Any, limit: float, stream: Any) -> Operation:
        """Raises what `check` raises, and InvalidUse where no carrier has such calls."""
        self.check()
        carrier = self.carriers.choose(calls, limit)
        return self.line.submit(Operation(self.line, carrier, calls, result, limit, stream))

    def check(self) -> None:
        """Raises why nothing can be called any more."""
        self.check_open()
        error = self.health.error
        if error is not None:
            raise error.again()

    def check_open(self) -> None:
        """Raises InvalidUse when it is closed, or another process's."""
        if self.foreign:
            instead = "join another group in the child"
            raise handle.foreign(f"communicator {self.group.name!r}", self._pid, instead)
        if self.closed:
            raise InvalidUse(f"communicator {self.group.name!r} is closed")

    @contextlib.contextmanager
    def succession(self) -> Generator[None]:
        """For one thread, which makes the next generation; for good where it closes this one.
        Raises InvalidUse for others, and where `check_open` does."""
        self.check_open()
        if not self._succession.acquire(blocking=False):
            raise InvalidUse(f"another thread shrinks or grows communicator {self.group.name!r}")
        try:
            self.check_open()
            yield
        finally:
            self._succession.release()

    @property
    def foreign(self) -> bool:
        """In a child that got it by fork."""
        return self._pid != handle.here

    def close(self, *, quietly: bool = False) -> None:
        """Waits 2 s for what is under way. `quietly`: the others know without being told. Does
        nothing in a forked child: connections and threads are the parent's."""
        if self.foreign:
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
        ended = InvalidUse(f"communicator {self.group.name!r} is closed")
        if self.health.error is None:
            self.line.settle(_SETTLING)
        self.health.leave(quietly=quietly)
        self.line.fail(ended)
        self.carriers.abort(ended)
        self.line.settle(_SETTLING)
        self.carriers.close()
        self.group.mailbox.close()
        bootstrap.leave(self.group)

    # -------------------------------------------------------------------------------------- inside
    def _failed(self, error: TransportError) -> None:
        self.line.fail(error)
        self.carriers.abort(error)
        self.group.mailbox.end(error)

    def _place(self) -> Place:
        return Place(self.line.begun, self.line.last)

    def _explain(self, operation: Operation, error: TransportError) -> TransportError:
        """What the caller gets for what a carrier raised."""
        if isinstance(error, (InvalidUse, Cancelled, Unavailable)):
            return error
        if isinstance(error, DeadlineExceeded) and self.health.error is None:
            self.health.fail(self._late(operation))
        known = self.health.wait_failed(0.0 if self.closed else _BLAME)
        if known is None:
            self.health.fail(error)
            known = self.health.error or error
        return known.again()

    def _late(self, operation: Operation) -> DeadlineExceeded:
        """Names who is behind, or is doing something else."""
        begun, last = self.line.begun, self.line.last
        group = self.group
        absent = {group.rank} | self.health.left
        records = group.records(absent)
        places = group.hub.gossip.places(group.id, records, _ASKING)
        told = _blame(group.rank, Place(begun, last), records, places)
        text = f"{operation.kind} on {group.name!r} reached its timeout of {operation.limit:.3g} s"
        return DeadlineExceeded(f"{text}{told}", op=operation.kind)


def _blame(me: int, here: Place, asked: Iterable[int], places: dict[int, Place]) -> str:
    words: list[str] = []
    for rank in asked:
        place = places.get(rank)
        if place is None:
            words.append(f"rank {rank} does not answer")
        elif place.begun < here.begun:
            words.append(f"rank {rank} has not called it")
        elif place.begun == here.begun and place.last != here.last:
            words.append(f"rank {rank} called {place.last} where rank {me} called {here.last}")
    shown = words[:8] + (["and more"] if len(words) > 8 else [])
    return f": {'; '.join(shown)}" if shown else ""
