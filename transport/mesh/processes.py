"""The processes behind all views of a mesh, as their owner keeps them. May import member, messages,
payload, process, shape, wheel, config.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.errors import ActorCrashed, InvalidUse
from transport.mesh import messages as m
from transport.mesh import payload
from transport.mesh import wheel as wheels
from transport.mesh.directory import here
from transport.mesh.future import Failed, Future
from transport.mesh.member import Member, Pending
from transport.mesh.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transport.config import Settings
    from transport.mesh.actor import Actor
    from transport.mesh.link import Body
    from transport.mesh.process import Host, Process, Start
    from transport.mesh.shape import Shape

_STOP = 10.0  # seconds for processes to end by themselves


@dataclass(frozen=True, slots=True)
class Spawned:
    """Actors that were spawned, so that a new process can get its own."""

    actor: int
    name: str
    shape: Shape
    value: payload.Payload

    def message(self, rank: int, number: int) -> m.Spawn:
        index = self.shape.ranks.index(rank)
        sizes = tuple(self.shape.sizes.items())
        return m.Spawn(number, self.actor, self.name, index, sizes, self.value.held)


class Processes:
    """All members of a mesh, by rank; a Team."""

    def __init__(self, host: Host, name: str, shape: Shape, settings: Settings) -> None:
        self.host = host
        self.name = name
        self.shape = shape
        self.settings = settings
        self.id = secrets.token_bytes(16)
        here().owned[self.id] = self
        self.spawned: dict[int, Spawned] = {}
        self.stopped = False
        self.on_crash: Callable[[Member, ActorCrashed], None] = lambda member, crash: None
        self._wheel = wheels.shared()
        self._members: list[Member] = []
        self._watch = Watch(lambda: tuple(self._members), settings, self._wheel)

    @property
    def deadline(self) -> float:
        return self.settings.call_deadline

    def door(self, rank: int) -> str:
        ready = self.member(rank).ready
        return ready.door if ready is not None else ""

    def check(self) -> None:
        self._watch.check()

    def member(self, rank: int) -> Member:
        if self.stopped:
            raise InvalidUse(f"the mesh {self.name} is stopped")
        return self._members[rank]

    # ---------------------------------------------------------------------------------------- start
    def start(self, starts: Sequence[Start]) -> None:
        """Raises ActorCrashed with the logs of one that did not come up."""
        try:
            self._members = self.begin(self.host.start(starts))
            ready = self.welcome(self._members)
            ready.get()
        except BaseException:
            self.stop(0.0)
            raise

    def begin(self, processes: Sequence[Process]) -> list[Member]:
        """The members of processes that have just started."""
        members: list[Member] = []
        for process in processes:
            name = f"rank {process.rank} of {self.name}"
            sock = process.socket
            members.append(Member(process.rank, process.host, name, sock, self._wheel, process))
        return members

    def welcome(self, members: Sequence[Member]) -> Future[None]:
        """Done when all of them serve."""
        end = time.monotonic() + self.settings.start_timeout
        future: Future[None] = Future(len(members), lambda values: None, end, self.check)
        for index, member in enumerate(members):
            member.on_ready = _settler(future, index, _Here())
            member.on_ended = self._ended_early(future, index)
            member.on_fault = self._fault
            member.begin()
            sizes = tuple(self.shape.sizes.items())
            member.tell(m.Welcome(self.id, self.name, member.rank, sizes))
        return future

    def _ended_early(self, future: Future[None], index: int) -> Callable[..., None]:
        def ended(member: Member, crash: ActorCrashed) -> None:
            future.settle(index, Failed(crash))
            self._ended(member, crash)

        return ended

    # --------------------------------------------------------------------------------------- actors
    def spawn(
        self, shape: Shape, name: str, actor: type[Actor], args: Any, kwargs: Any
    ) -> tuple[int, Future[None]]:
        """The actors' number, and a future that is done when all are made."""
        end = time.monotonic() + self.deadline
        value = payload.encode((actor, args, kwargs), payload.Context(name, end))
        spawned = Spawned(secrets.randbits(62), name, shape, value)
        self.spawned[spawned.actor] = spawned
        future: Future[None] = Future(len(shape), lambda values: None, end, self.check)
        for index, rank in enumerate(shape.ranks):
            self.spawn_on(self.member(rank), spawned, future, index, end)
        return spawned.actor, future

    def spawn_on(
        self, member: Member, spawned: Spawned, sink: Future[Any], index: int, end: float
    ) -> None:
        pending = Pending(sink, index, f"{spawned.name}.__init__", end)
        rank = member.rank
        member.ask(lambda n: spawned.message(rank, n), spawned.value.data, pending)

    def _fault(self, member: Member, fault: m.Fault, body: Body) -> None:
        pass

    # ------------------------------------------------------------------------------------------ end
    def _ended(self, member: Member, crash: ActorCrashed) -> None:
        if not self.stopped and not member.stopping:
            self.on_crash(member, crash)

    def stop(self, timeout: float = _STOP) -> None:
        """Actors clean up, then their processes end; those that do not are killed. Idempotent."""
        if self.stopped:
            return
        self.stopped = True
        end = time.monotonic() + timeout
        for member in self._members:
            member.stopping = True
            member.tell(m.Stop())
        for member in self._members:
            if member.process is not None:
                _await_end(member.process, end)
        for member in self._members:
            member.link.close()
            if member.process is not None:
                member.process.stop(max(end - time.monotonic(), 0.0))
        self._watch.close()
        self.host.close()


class _Here:
    """The reply of a process that serves."""

    failed = heavy = False

    def value(self) -> None:
        return None

    def drop(self) -> None:
        pass


def _settler(future: Future[None], index: int, reply: _Here) -> Callable[[], None]:
    return lambda: future.settle(index, reply)


def _await_end(process: Process, end: float) -> None:
    import concurrent.futures

    try:
        process.ended.result(max(end - time.monotonic(), 0.0))
    except (TimeoutError, concurrent.futures.TimeoutError):
        process.kill()
