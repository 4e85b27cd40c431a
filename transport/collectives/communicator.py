"""What users hold: a group of ranks that make the same calls. Imports torch when it is made.

May import everything else in the room.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import threading
import weakref
from typing import TYPE_CHECKING, Any

from transport.collectives import bootstrap
from transport.collectives.call import Call, Kind
from transport.collectives.card import Place
from transport.collectives.carriers import Carriers
from transport.collectives.choice import Choice
from transport.collectives.health import Health
from transport.collectives.line import Line
from transport.collectives.operation import Operation
from transport.collectives.reduction import Premultiplied, Reduction
from transport.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidUse,
    TransportError,
    Unavailable,
)
from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport.collectives.arguments import Asked
    from transport.collectives.group import Group
    from transport.engine.engine import Engine

DEADLINE = 300.0  # seconds for an operation
_JOINING = 60.0  # seconds for all ranks to come
_BLAME = 1.0  # seconds to find out who is behind what a carrier says
_ASKING = 0.3  # seconds for members to say how far they are
_SETTLING = 2.0  # seconds for what is under way when it is closed


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

    def __init__(self, group: Group, choice: Choice, *, deadline: float, joining: float) -> None:
        """See `join`, and `transport.communicator` inside of actors."""
        try:
            from transport.collectives.arguments import Arguments
        except ImportError:
            raise Unavailable("a communicator needs torch", "pip install torch") from None
        self._group = group
        self._deadline = deadline
        self._choice = choice
        self._arguments = Arguments(group.rank, group.size)
        self._carriers = Carriers(group, choice)
        self._line = Line(group.name, self._explain)
        self._health = Health(group, self._failed, self._place)
        self._local = threading.local()  # what a thread coalesces
        self._closed = False
        self._close_lock = threading.Lock()
        _living.add(self)
        try:
            self._health.look()
            self._check()
            self._carriers.make_all(["cpu"], joining)
        except BaseException:
            self.close()
            raise

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
        group, rules = bootstrap.join(name, rank, size, at, engine=engine, deadline=deadline)
        return cls(group, Choice(rules), deadline=operation_deadline, joining=deadline)

    # --------------------------------------------------------------------------------------- facts
    @property
    def name(self) -> str:
        return self._group.name

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def size(self) -> int:
        return self._group.size

    @property
    def generation(self) -> int:
        """0 for the first; one more for each that `shrink` or `grow` made of it."""
        return self._group.generation

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def error(self) -> TransportError | None:
        """What every call raises from now on; None while the communicator works."""
        return self._health.error

    @property
    def lost(self) -> tuple[int, ...]:
        """Ranks that are known to be lost."""
        return tuple(sorted(self._health.lost))

    # --------------------------------------------------------------------------------- collectives
    def all_reduce(
        self,
        tensor: Any,
        *,
        out: Any = None,
        op: Reduction | Premultiplied | str = "sum",
        deadline: float | None = None,
        stream: Any = None,
    ) -> Operation:
        """Combines the tensors of all ranks; all have the result, in `tensor` itself or in `out`.

        `op` is "sum", "prod", "min", "max", "avg" or Premultiplied. `wait` returns the result.
        """
        asked = self._arguments.all_reduce(tensor, out, Reduction.parse(op))
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
        each rank; without it to a new tensor of shape (size, *shape). `wait` returns that.
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
    ) -> Iterator[Operation]:
        """`with comm.coalesced() as all:` the calls of this thread begin together, at its end.

        Each of them returns `all`, whose `wait` returns the list of their results. They are for
        one carrier, hence on one device; deadlines and streams of their own do not count.
        """
        if getattr(self._local, "together", None) is not None:
            raise InvalidUse("coalesced() within coalesced()")
        operation = Operation(self._line, None, (), [], self._limit(deadline), stream)
        self._local.together = operation
        try:
            yield operation
        finally:
            self._local.together = None
        if not operation.calls:
            operation.end(None)
            return
        self._check()
        operation.carrier_of(self._carriers.choose(operation.calls, operation.left()))
        self._line.submit(operation)

    # -------------------------------------------------------------------------------------- closing
    def close(self) -> None:
        """Leaves the group: the others' calls that need this rank fail. Waits 2 s for what is under
        way. Idempotent."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        closed = InvalidUse(f"communicator {self.name!r} is closed")
        if self._health.error is None:
            self._line.settle(_SETTLING)
        self._health.leave()
        self._line.fail(closed)
        self._carriers.abort(closed)
        self._line.settle(_SETTLING)
        self._carriers.close()
        self._group.mailbox.close()
        if self.rank == 0:
            bootstrap.leave(self._group)
        _living.discard(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "broken" if self.error else "open"
        return f"<Communicator {self.name!r} rank {self.rank} of {self.size}: {state}>"

    # -------------------------------------------------------------------------------------- inside
    def _run(self, asked: Asked, deadline: float | None, stream: Any) -> Operation:
        self._check()
        limit = self._limit(deadline)
        together: Operation | None = getattr(self._local, "together", None)
        if together is not None:
            return together.also(asked.call, asked.result)
        carrier = self._carriers.choose([asked.call], limit)
        operation = Operation(self._line, carrier, [asked.call], asked.result, limit, stream)
        return self._line.submit(operation)

    def _limit(self, deadline: float | None) -> float:
        from transport.collectives.arguments import check_deadline

        return self._deadline if deadline is None else check_deadline(deadline)

    def _check(self) -> None:
        if self._closed:
            raise InvalidUse(f"communicator {self.name!r} is closed")
        error = self._health.error
        if error is not None:
            raise copy.copy(error)

    def _failed(self, error: TransportError) -> None:
        self._line.fail(error)
        self._carriers.abort(error)
        self._group.mailbox.end(error)

    def _place(self) -> Place:
        return Place(self._line.begun, self._line.last)

    def _explain(self, operation: Operation, error: TransportError) -> TransportError:
        """What the caller gets for what a carrier raised."""
        if isinstance(error, (InvalidUse, Cancelled, Unavailable)):
            return error
        if isinstance(error, DeadlineExceeded):
            self._health.fail(self._late(operation))
        known = self._health.wait_failed(0.0 if self._closed else _BLAME)
        if known is None:
            self._health.fail(error)
            known = self._health.error or error
        return copy.copy(known)

    def _late(self, operation: Operation) -> DeadlineExceeded:
        """Names who is behind, or is doing something else."""
        begun, last = self._line.begun, self._line.last
        records = {
            rank: peer.record for rank, peer in enumerate(self._group.peers) if rank != self.rank
        }
        places = self._group.hub.gossip.places(self._group.id, records, _ASKING)
        told = _blame(begun, last, records, places)
        text = f"{operation.kind} on {self.name!r} did not end within {operation._deadline:.3g} s"
        return DeadlineExceeded(f"{text}{told}", op=operation.kind)


def _blame(begun: int, last: str, asked: Any, places: dict[int, Place]) -> str:
    words: list[str] = []
    for rank in asked:
        place = places.get(rank)
        if place is None:
            words.append(f"rank {rank} does not answer")
        elif place.begun < begun:
            words.append(f"rank {rank} has not called it")
        elif place.begun == begun and place.last != last:
            words.append(f"rank {rank} called {place.last} where this one called {last}")
    shown = words[:8] + (["and more"] if len(words) > 8 else [])
    return f": {'; '.join(shown)}" if shown else ""


_living: weakref.WeakSet[Communicator] = weakref.WeakSet()


def _close_all() -> None:
    """At exit, before their engines: the others hear that this rank left, not that it was lost."""
    for each in list(_living):
        each.close()


atexit.register(_close_all)
