"""An endpoint of several actors, and the ways to call it. May import context, future, member,
payload, team, values, messages.

The arguments are encoded once, for all members.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from transport.errors import InvalidUse
from transport.mesh import context, payload
from transport.mesh import messages as m
from transport.mesh.future import Failed, Future
from transport.mesh.member import Pending
from transport.mesh.stream import Stream
from transport.mesh.values import ValueMesh
from transport.mesh.window import Both
from transport.types import check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.mesh.member import Member
    from transport.mesh.offers import Offers
    from transport.mesh.shape import Shape
    from transport.mesh.team import Team

T = TypeVar("T")


class Endpoint(Generic[T]):
    """`mesh.step`: one endpoint of all actors of a mesh.

    Each way returns at once. What it returns fails with ActorError when the endpoint raised, and
    with ActorCrashed when a process that it needs ended, or did not answer before the deadline.
    """

    def __init__(
        self,
        team: Team,
        shape: Shape,
        actor: int,
        name: str,
        method: str,
        deadline: float | None = None,
        keep: str = "",
        *,
        spawned: tuple[int, ...],
    ) -> None:
        self._team = team
        self._shape = shape
        self._actor = actor
        self._name = name
        self._method = method
        self._deadline = deadline
        self._keep = keep
        self._spawned = spawned  # ranks of all actors that were spawned with these

    def options(
        self, *, deadline: float | None = None, keep: Literal["", "remote"] | None = None
    ) -> Endpoint[T]:
        """The same endpoint, with what is given changed.

        `deadline` in seconds (default: `call_deadline`). With `keep="remote"` tensors and arrays of
        the result stay where they are, and a RemoteTensor comes of each; "" is as without.
        """
        limit = self._deadline if deadline is None else check_timeout(deadline)
        if limit is not None and limit <= 0:
            raise InvalidUse(f"deadline= is more than 0 seconds, not {deadline}")
        kept = self._keep if keep is None else keep
        if kept not in ("", "remote"):
            raise InvalidUse(f'keep= is "remote" or "", not {keep!r:.80}')
        return Endpoint(
            self._team,
            self._shape,
            self._actor,
            self._name,
            self._method,
            limit,
            kept,
            spawned=self._spawned,
        )

    def call(self, *args: Any, **kwargs: Any) -> Future[ValueMesh[T]]:
        """Of all actors; a value for each."""
        shape = self._shape
        return self._future(
            shape.ranks, lambda values: ValueMesh(shape, tuple(values)), args, kwargs
        )

    def call_one(self, *args: Any, **kwargs: Any) -> Future[T]:
        """Of the only actor. Raises InvalidUse where there are several."""
        if len(self._shape) != 1:
            raise InvalidUse(
                f"call_one is for one actor, and here are {self._shape.describe()}: slice the "
                "mesh, or use call or choose"
            )
        return self._future(self._shape.ranks, _only, args, kwargs)

    def choose(self, *args: Any, **kwargs: Any) -> Future[T]:
        """Of one of the actors: a living one that has the fewest calls of this process to do."""
        members = [(rank, self._team.member(rank)) for rank in self._shape.ranks]
        alive = [each for each in members if each[1].crash is None] or members
        least = min(member.waiting for _, member in alive)
        rank = random.choice([rank for rank, member in alive if member.waiting == least])
        return self._future((rank,), _only, args, kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Stream[T]:
        """Of all actors; futures in the order in which they answer."""
        end = self._end()
        stream: Stream[T] = Stream(self._shape, end, self._team.check)
        self._send(self._shape.ranks, stream, end, args, kwargs)
        return stream

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        """Of all actors, and nobody waits: what one of them raises reaches the mesh's owner.

        Blocks where a process is about a thousand broadcasts behind, or 16 MiB of them; raises
        DeadlineExceeded where it stays so until the deadline.
        """
        end = self._end()
        value = payload.encode((args, kwargs), self._context(self._shape.ranks, end))
        what, left = f"{self._name}.{self._method}", end - time.monotonic()
        held: Future[None] | None = None
        if value.held:  # what it refers to is needed until all have it
            held = Future(len(self._shape), _nothing)
            held.unasked = True  # the mesh's owner hears of it
            held.finished = value.release or held.finished

        def make(number: int) -> m.Call:
            broadcast = bool(number)
            return m.Call(number, self._actor, self._method, left, value.held, "", broadcast)

        for index, rank in enumerate(self._shape.ranks):
            member = self._team.member(rank)
            own = bool(self._own_thread((rank,)))  # which it would wait for
            try:
                member.await_room(end)
                size, answered = len(value.data), held is not None
                mark = member.window.enter(size, end, what, answered=answered, own=own)
            except BaseException as error:
                for rest in range(index, len(self._shape)):
                    if held is not None:
                        held.settle(rest, Failed(error))
                raise
            if mark:
                sink = member.window if held is None else Both(member.window, held)
                member.ask(make, value.data, Pending(sink, index, what, float("inf")))
            else:
                member.tell(make(0), value.data)

    # -------------------------------------------------------------------------------------- sending
    def _end(self) -> float:
        limit = self._team.deadline if self._deadline is None else self._deadline
        return time.monotonic() + limit

    def _context(
        self, ranks: tuple[int, ...], end: float, offers: Offers | None = None
    ) -> payload.Context:
        places = ranks, self._spawned
        return payload.Context(self._name, end, len(ranks), places=places, offers=offers)

    def _future(
        self,
        ranks: tuple[int, ...],
        join: Callable[[list[Any]], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Future[Any]:
        end = self._end()
        future: Future[Any] = Future(len(ranks), join, end, self._team.check)
        self._send(ranks, future, end, args, kwargs)
        return future

    def _send(
        self,
        ranks: tuple[int, ...],
        sink: Future[Any] | Stream[Any],
        end: float,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        only = self._team.member(ranks[0]) if len(ranks) == 1 else None
        offers = None if only is None else only.offers
        value = payload.encode((args, kwargs), self._context(ranks, end, offers))
        try:
            self._send_encoded(ranks, sink, end, value, only)
        except BaseException:
            if offers is not None and value.room:
                offers.leave(value.room)
            raise

    def _send_encoded(
        self,
        ranks: tuple[int, ...],
        sink: Future[Any] | Stream[Any],
        end: float,
        value: payload.Payload,
        only: Member | None,
    ) -> None:
        """`only` has what is in a room: it is no matter who answers for its rank by now."""
        if value.release is not None:
            sink.finished = value.release
        sink.answered_by = self._own_thread(ranks)
        what = f"{self._name}.{self._method}"
        left = end - time.monotonic()

        def make(number: int) -> m.Call:
            call = number, self._actor, self._method, left, value.held, self._keep
            return m.Call(*call, room=value.room, large=value.large)

        for index, rank in enumerate(ranks):
            member = only or self._team.member(rank)
            member.await_room(end)
            member.ask(make, value.data, Pending(sink, index, what, end))

    def _own_thread(self, ranks: tuple[int, ...]) -> int:
        """Of the actor that runs this code, where it calls itself."""
        here = context.current()
        if here is None or here.actor != self._actor:
            return 0
        own = any(self._team.door(rank) == here.door for rank in ranks)
        return here.thread if own else 0

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises TypeError: how many answer, and who waits for them, is to be said."""
        name = f"{self._name}.{self._method}"
        words = "call_one(...), call(...), choose(...), stream(...) or broadcast(...)"
        raise TypeError(f"{name} is not called by itself: {name}.{words}")

    def __repr__(self) -> str:
        return f"<endpoint {self._name}.{self._method} of {self._shape.describe()}>"


def _only(values: list[Any]) -> Any:
    return values[0]


def _nothing(values: list[Any]) -> None:
    return None
