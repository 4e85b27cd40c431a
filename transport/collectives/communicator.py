"""What users hold: a group of ranks that make the same calls. Imports torch when it is made.

May import everything else in the room.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any

from transport.collectives import bootstrap
from transport.collectives.call import Call, Kind
from transport.collectives.choice import Choice
from transport.collectives.operation import Operation
from transport.collectives.reduction import Premultiplied, Reduction
from transport.collectives.seat import Seat
from transport.collectives.succession import check_limit, entered, grown, shrunk
from transport.collectives.tolerant import tolerate
from transport.errors import DeadlineExceeded, InvalidUse
from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Generator

    from transport.collectives.arguments import Arguments, Asked
    from transport.collectives.group import Group
    from transport.engine.engine import Engine
    from transport.errors import TransportError

DEADLINE = 300.0  # seconds for an operation
_JOINING = 60.0  # seconds for all ranks to come
_REGROUPING = 30.0  # seconds for those who are left to agree
_VOTING = 60.0  # seconds


class Communicator(Closing):
    """One rank's end of a group: `rank` of `size`, which all make the same calls in one order.

    Tensors are torch tensors or numpy arrays, dense and of one dtype and device. Sources that are
    not contiguous are copied; results must be contiguous. All methods check their arguments before
    anything begins (InvalidUse), and return an `Operation`. Calls are carried out one after the
    other; sends and receives only wait for their counterpart.

    When a rank is lost, what is under way fails on all others with RankLost, and so does every
    call after it, until `shrink()` gives a communicator of those who are left. A call that does
    not end within its deadline ends the communicator, too.
    """

    def __init__(self, seat: Seat, deadline: float) -> None:
        """See `join`, and `transport.communicator` inside of actors."""
        self._seat = seat
        self._deadline = deadline
        self._local = threading.local()  # what a thread coalesces
        self._tolerant: Operation | None = None  # the last that tolerates failures
        _living.add(self)

    @classmethod
    def join(
        cls,
        name: str,
        rank: int,
        size: int,
        at: str | None = None,
        *,
        engine: Engine | None = None,
        deadline: float = _JOINING,
        operation_deadline: float = DEADLINE,
    ) -> Communicator:
        """This process as one rank of the group of that name; returns once all have come.

        `at` is where rank 0's engine listens ("HOST:PORT" or "unix:PATH"): rank 0 opens it there,
        unless its `engine` listens already, and the others find it. A process has one engine for
        all its communicators, unless `engine` is given, whose notifications are theirs then.
        `operation_deadline` is that of operations that are not given one of their own.

        Raises DeadlineExceeded, which names the ranks that did not come; PeerLost; InvalidUse for
        ranks that do not fit each other; Unavailable without torch.
        """
        limit = check_limit(operation_deadline)
        group, rules = bootstrap.join(name, rank, size, at, engine=engine, deadline=deadline)
        return cls.of(group, Choice(rules), limit, check_limit(deadline))

    @classmethod
    def of(cls, group: Group, choice: Choice, deadline: float, joining: float) -> Communicator:
        """Of a group that has found together."""
        made = cls(Seat(group, choice), deadline)
        try:
            made._seat.open(("cpu",), joining)
        except BaseException:
            made.close()
            raise
        return made

    # --------------------------------------------------------------------------------------- facts
    @property
    def name(self) -> str:
        return self._seat.group.name

    @property
    def rank(self) -> int:
        return self._seat.group.rank

    @property
    def size(self) -> int:
        return self._seat.group.size

    @property
    def generation(self) -> int:
        """0 for the first; one more whenever the group has shrunk or grown."""
        return self._seat.group.generation

    @property
    def closed(self) -> bool:
        return self._seat.closed

    @property
    def error(self) -> TransportError | None:
        """What every call raises from now on; None while the communicator works."""
        return self._seat.health.error

    @property
    def lost(self) -> tuple[int, ...]:
        """Ranks that are known to be lost."""
        return tuple(sorted(self._seat.health.lost))

    # --------------------------------------------------------------------------------- collectives
    def all_reduce(
        self,
        tensor: Any,
        *,
        out: Any = None,
        op: Reduction | Premultiplied | str = "sum",
        tolerate_failures: bool = False,
        deadline: float | None = None,
        stream: Any = None,
    ) -> Operation:
        """Combines the tensors of all ranks; all have the result, in `tensor` itself or in `out`.

        `op` is "sum", "prod", "min", "max", "avg" or Premultiplied. `wait` returns the result.

        With `tolerate_failures` ranks that are lost meanwhile are left out: those who are left
        shrink, and the operation is repeated from copies of what they gave, unless one of them has
        the result already. All of them get the same; "avg" divides by the number of those who took
        part, which `Operation.ranks` names, by their numbers when it was called. This communicator
        has fewer ranks then. It costs a copy of the tensor, and the next call waits for it.
        """
        asked = self._arguments.all_reduce(tensor, out, Reduction.parse(op))
        if tolerate_failures:
            return self._tolerate(asked, deadline)
        return self._run(asked, deadline, stream)

    def broadcast(
        self, tensor: Any, root: int = 0, *, deadline: float | None = None, stream: Any = None
    ) -> Operation:
        """Every rank's tensor becomes the root's. `wait` returns it."""
        return self._run(self._arguments.broadcast(tensor, root), deadline, stream)

    def reduce(
        self,
        tensor: Any,
        root: int = 0,
        *,
        out: Any = None,
        op: Reduction | Premultiplied | str = "sum",
        deadline: float | None = None,
        stream: Any = None,
    ) -> Operation:
        """As `all_reduce`, but only the root has the result; elsewhere `wait` returns None and the
        tensor stays as it was."""
        asked = self._arguments.reduce(tensor, out, root, Reduction.parse(op))
        return self._run(asked, deadline, stream)

    def all_gather(
        self, tensor: Any, *, out: Any = None, deadline: float | None = None, stream: Any = None
    ) -> Operation:
        """Every rank has the tensors of all ranks, in rank order.

        They are written to `out`: a tensor of `size` times as many elements, or a list of one for
        each rank; without it to a new tensor, with a row for each. `wait` returns that.
        """
        return self._run(self._arguments.all_gather(tensor, out), deadline, stream)

    def reduce_scatter(
        self,
        tensor: Any,
        *,
        out: Any = None,
        op: Reduction | Premultiplied | str = "sum",
        deadline: float | None = None,
        stream: Any = None,
    ) -> Operation:
        """Combines what all ranks have for each rank: `tensor` is a list of one for each, or one
        whose leading dimension they share equally. `wait` returns this rank's part, `out`."""
        asked = self._arguments.reduce_scatter(tensor, out, Reduction.parse(op))
        return self._run(asked, deadline, stream)

    def all_to_all(
        self, tensor: Any, *, out: Any = None, deadline: float | None = None, stream: Any = None
    ) -> Operation:
        """Gives a part to each rank and gets one from each. `tensor` and `out` are lists of one for
        each rank, which may differ in size, or tensors whose leading dimension is shared equally.
        `wait` returns `out`."""
        return self._run(self._arguments.all_to_all(tensor, out), deadline, stream)

    def gather(
        self,
        tensor: Any,
        root: int = 0,
        *,
        out: Any = None,
        deadline: float | None = None,
        stream: Any = None,
    ) -> Operation:
        """As `all_gather`, but only the root has them; elsewhere `wait` returns None."""
        return self._run(self._arguments.gather(tensor, out, root), deadline, stream)

    def scatter(
        self,
        tensor: Any = None,
        root: int = 0,
        *,
        out: Any = None,
        deadline: float | None = None,
        stream: Any = None,
    ) -> Operation:
        """The root gives each rank its part of `tensor`: a list of one for each, or one whose
        leading dimension they share. The others give `out=` alone. `wait` returns the own part."""
        return self._run(self._arguments.scatter(tensor, out, root), deadline, stream)

    def send(
        self,
        tensor: Any,
        peer: int,
        *,
        tag: int = 0,
        deadline: float | None = None,
        stream: Any = None,
    ) -> Operation:
        """Sends to a rank, which must receive as many bytes with that tag."""
        return self._run(self._arguments.send(tensor, peer, tag), deadline, stream)

    def recv(
        self,
        tensor: Any,
        peer: int,
        *,
        tag: int = 0,
        deadline: float | None = None,
        stream: Any = None,
    ) -> Operation:
        """Receives into the tensor what a rank sends with that tag. `wait` returns it."""
        return self._run(self._arguments.recv(tensor, peer, tag), deadline, stream)

    def barrier(self, *, deadline: float | None = None) -> Operation:
        """Ends once all ranks have called it."""
        from transport.collectives.arguments import Asked

        return self._run(Asked(Call(Kind.BARRIER), None), deadline, None)

    @contextlib.contextmanager
    def coalesced(
        self, *, deadline: float | None = None, stream: Any = None
    ) -> Generator[Operation]:
        """`with comm.coalesced() as all:` the calls of this thread begin together, at its end.

        Each of them returns `all`, whose `wait` returns the list of their results. They are for
        one carrier, hence on one device; deadlines and streams of their own do not count.
        """
        if getattr(self._local, "together", None) is not None:
            raise InvalidUse("coalesced() within coalesced()")
        seat = self._seat
        seat.check_open()
        operation = Operation(seat.line, None, (), [], self._limit(deadline), stream)
        self._local.together = operation
        try:
            yield operation
        finally:
            self._local.together = None
        if not operation.calls:
            operation.end(None)
            return
        seat.check()
        operation.carrier_of(seat.carriers.choose(operation.calls, operation.left()))
        seat.line.submit(operation)

    # ------------------------------------------------------------------------------------- elastic
    @property
    def address(self) -> str:
        """Where this rank's engine listens; rank 0's is what `enter` of newcomers needs."""
        return self._seat.group.hub.engine.addresses[0]

    def shrink(self, *, deadline: float = _REGROUPING) -> Communicator:
        """A communicator of the ranks that are not lost, numbered anew in the same order.

        All of them call it, after an error or without one; this communicator is closed then. Ranks
        that die meanwhile are left out, too. Raises DeadlineExceeded, which names who did not call
        it. Ranks that cannot reach each other, and live, take each other for lost: with more than
        one network between them that may leave two groups.
        """
        limit = check_limit(deadline)
        self._await_tolerant()
        seat, _, _ = shrunk(self._seat, limit, None)
        return self._succeed(seat)

    def grow(self, newcomers: int = 1, *, deadline: float = _REGROUPING) -> Communicator:
        """A communicator of all ranks and so many more, which call `enter` and get the last ranks.

        All ranks call it; this communicator is closed then. Raises DeadlineExceeded when too few
        come, and this one stays as it was.
        """
        limit = check_limit(deadline)
        self._await_tolerant()
        return self._succeed(grown(self._seat, newcomers, limit))

    @classmethod
    def enter(
        cls,
        name: str,
        at: str,
        *,
        engine: Engine | None = None,
        deadline: float = _JOINING,
        operation_deadline: float = DEADLINE,
    ) -> Communicator:
        """This process as a new rank of the group of that name, whose members call `grow`.

        `at` is the `address` of its rank 0. What `join` raises.
        """
        limit = check_limit(operation_deadline)
        return cls(entered(name, at, engine, check_limit(deadline)), limit)

    def should_commit(self, ok: bool, *, deadline: float = _VOTING) -> bool:
        """A vote that ends a training step: True if all ranks that live said `ok`.

        Ranks that are lost meanwhile do not count, and the communicator goes on without them, as
        with `tolerate_failures`. False too where the votes do not come within the deadline:
        `error` says so then, and whoever said nothing in time must not be taken to have committed.
        """
        from transport.collectives.arguments import vote

        mine = vote(bool(ok))
        try:
            self.all_reduce(mine, op="min", tolerate_failures=True, deadline=deadline).wait()
        except DeadlineExceeded:
            return False
        return bool(mine[0])

    def _succeed(self, seat: Seat) -> Communicator:
        _living.discard(self)
        return Communicator(seat, self._deadline)

    # ------------------------------------------------------------------------------------- closing
    def close(self) -> None:
        """Leaves the group: the others' calls that need this rank fail. Waits 2 s for what is under
        way. Idempotent. Does nothing in a forked child: what it holds is the parent's."""
        self._seat.close()
        _living.discard(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "broken" if self.error else "open"
        if self._seat.foreign:
            state = "of another process"
        return f"<Communicator {self.name!r} rank {self.rank} of {self.size}: {state}>"

    # -------------------------------------------------------------------------------------- inside
    @property
    def _arguments(self) -> Arguments:
        return self._seat.arguments

    def _tolerate(self, asked: Asked, deadline: float | None) -> Operation:
        if getattr(self._local, "together", None) is not None:
            raise InvalidUse("an all-reduce that tolerates failures is never coalesced")
        self._await_tolerant()
        self._tolerant = tolerate(self._move_to, self._seat, asked, self._limit(deadline))
        return self._tolerant

    def _move_to(self, seat: Seat) -> None:
        self._seat = seat

    def _await_tolerant(self) -> None:
        """It changes the ranks."""
        if self._tolerant is not None:
            self._tolerant.exception_at_end()
            self._tolerant = None

    def _run(self, asked: Asked, deadline: float | None, stream: Any) -> Operation:
        limit = self._limit(deadline)
        together: Operation | None = getattr(self._local, "together", None)
        if together is not None:
            return together.also(asked.call, asked.result)
        self._await_tolerant()
        return self._seat.run([asked.call], asked.result, limit, stream)

    def _limit(self, deadline: float | None) -> float:
        from transport.collectives.arguments import check_deadline

        return self._deadline if deadline is None else check_deadline(deadline)


_living: weakref.WeakSet[Communicator] = weakref.WeakSet()


def _close_all() -> None:
    """At exit, before their engines: the others hear that this rank left, not that it was lost."""
    for each in list(_living):
        each.close()


atexit.register(_close_all)
