"""The processes behind all views of a mesh, as their owner keeps them. May import member, messages,
payload, process, shape, wheel, config.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transport.errors import ActorCrashed, InvalidUse
from transport.mesh import failure, payload
from transport.mesh import messages as m
from transport.mesh import wheel as wheels
from transport.mesh.directory import here
from transport.mesh.future import Failed, Future
from transport.mesh.member import Member, Pending
from transport.mesh.process import Start
from transport.mesh.supervision import Policy, Supervisor
from transport.mesh.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transport.config import Settings
    from transport.mesh.actor import Actor
    from transport.mesh.link import Body
    from transport.mesh.process import Host, Process
    from transport.mesh.shape import Shape

_STOP = 10.0  # seconds for processes to end by themselves
_MOST_MEETS = 1 << 16
_EXIT = 5.0  # the same when this program ends without having stopped them


@dataclass(frozen=True, slots=True)
class Spawned:
    """Actors that were spawned, so that a new process can get its own."""

    actor: int
    name: str
    shape: Shape
    value: payload.Payload
    meets: dict[str, str] = field(default_factory=dict)  # where groups of them meet, by key

    def message(self, rank: int, number: int) -> m.Spawn:
        index = self.shape.ranks.index(rank)
        sizes = tuple(self.shape.sizes.items())
        return m.Spawn(number, self.actor, self.name, index, sizes, self.value.held)

    def release(self) -> None:
        """What was held for processes to come."""
        if self.value.release is not None:
            self.value.release()


class Processes:
    """All members of a mesh, by rank; a Team."""

    def __init__(self, host: Host, name: str, shape: Shape, settings: Settings) -> None:
        self.host = host
        self.name = name
        self.shape = shape
        self.settings = settings
        self._environment = settings.for_others()
        self.id = secrets.token_bytes(16)
        here().owned[self.id] = self
        _open.add(self)
        self.spawned: dict[int, Spawned] = {}
        self.stopped = False
        self._pid = os.getpid()
        self.supervisor = Supervisor(self, Policy(), None)
        self._wheel = wheels.shared()
        self._members: list[Member] = []
        self._started = False
        self._joining: list[Member] = []  # that will take somebody's place
        self._stopping = threading.Lock()  # each process is either stop's to end or replace's
        self._replacing = [threading.Lock() for _ in shape.ranks]
        self._watch = Watch(lambda: (*self._members, *self._joining), settings, self._wheel)

    @property
    def deadline(self) -> float:
        return self.settings.call_deadline

    @property
    def runs(self) -> bool:
        """Whether there are processes to be stopped here."""
        own = os.getpid()
        others = any(each.process is not None and each.process.pid != own for each in self._members)
        return others and not self.stopped and self._pid == own

    def door(self, rank: int) -> str:
        ready = self.member(rank).ready
        return ready.door if ready is not None else ""

    def check(self) -> None:
        self._watch.check()

    def member(self, rank: int) -> Member:
        if self.stopped:
            raise InvalidUse(f"the mesh {self.name} is stopped")
        if os.getpid() != self._pid:
            raise InvalidUse(
                f"the mesh {self.name} belongs to the process that was forked to make this one; "
                "start a mesh here, or start processes without fork"
            )
        return self._members[rank]

    # ---------------------------------------------------------------------------------------- start
    def start(self) -> None:
        """Raises ActorCrashed with the logs of one that did not come up."""
        try:
            self._members = self._begin(self.shape.ranks)
            ready = self.welcome(self._members)
            ready.get()
            self._started = True
        except BaseException:
            self.stop(0.0)
            raise

    def _begin(self, ranks: Sequence[int]) -> list[Member]:
        """The members of processes that have just started."""
        members: list[Member] = []
        starts = [Start(rank, self.name, self._environment) for rank in ranks]
        for process in self.host.start(starts):
            name = f"rank {process.rank} of {self.name}"
            sock = process.socket
            members.append(Member(process.rank, process.host, name, sock, self._wheel, process))
        return members

    def welcome(self, members: Sequence[Member]) -> Future[None]:
        """Done when all of them serve."""
        end = time.monotonic() + self.settings.start_timeout
        slow = functools.partial(self._give_up, members)
        future: Future[None] = Future(len(members), lambda values: None, end, slow)
        for index, member in enumerate(members):
            member.on_ready = _settler(future, index, _Here())
            member.on_ended = self._ended_early(future, index)
            member.on_fault = self._fault
            member.on_meet = self._meet
            member.begin()
            sizes = tuple(self.shape.sizes.items())
            member.tell(m.Welcome(self.id, self.name, member.rank, sizes))
        return future

    def _ended_early(self, future: Future[None], index: int) -> Callable[..., None]:
        def ended(member: Member, crash: ActorCrashed) -> None:
            future.settle(index, Failed(crash, expected=member.stopping or self.stopped))
            self._ended(member, crash)

        return ended

    # --------------------------------------------------------------------------------------- actors
    def spawn(self, shape: Shape, name: str, actor: type[Actor], args: Any, kwargs: Any) -> int:
        """The actors' number, once all are made. If one cannot be, the others go."""
        end = time.monotonic() + self.settings.spawn_deadline
        context = payload.Context(name, end, len(shape), places=(shape.ranks, shape.ranks))
        value = payload.encode((actor, args, kwargs), context)
        spawned = Spawned(secrets.randbits(62), name, shape, value)
        self.spawned[spawned.actor] = spawned
        future: Future[None] = Future(len(shape), lambda values: None, end, self.check)
        try:
            for index, rank in enumerate(shape.ranks):
                self.spawn_on(self.member(rank), spawned, future, index, end)
            future.get()
        except BaseException:
            self.discard(spawned.actor)
            raise
        return spawned.actor

    def discard(self, actor: int) -> None:
        spawned = self.spawned.pop(actor, None)
        if spawned is None:
            return
        for rank in spawned.shape.ranks:
            self._members[rank].tell(m.Forget(actor))
        spawned.release()

    def spawn_on(
        self, member: Member, spawned: Spawned, sink: Future[Any], index: int, end: float
    ) -> None:
        pending = Pending(sink, index, f"{spawned.name}.__init__", end)
        rank = member.rank
        member.ask(lambda n: spawned.message(rank, n), spawned.value.data, pending)

    # -------------------------------------------------------------------------------- supervision
    def supervise(self, policy: Policy, hook: Callable[[ActorCrashed], Any] | None) -> None:
        self.supervisor.close()
        self.supervisor = Supervisor(self, policy, hook)

    def _meet(self, member: Member, message: m.Meet) -> None:
        """An actor says where a group of those spawned with it meets, or asks."""
        spawned = self.spawned.get(message.actor)
        if spawned is None:
            return
        if message.at:
            if message.key in spawned.meets or len(spawned.meets) < _MOST_MEETS:
                spawned.meets[message.key] = message.at
        elif message.key in spawned.meets:
            member.tell(m.Meet(message.actor, message.key, spawned.meets[message.key]))

    def _fault(self, member: Member, fault: m.Fault, body: Body) -> None:
        """An actor broke, and its process lives."""
        spawned = self.spawned.get(fault.actor)
        what = f"{spawned.name if spawned else 'an actor'}.{fault.method}"
        error = failure.unpack(body, what, member.rank, member.host)
        cause = "raised in a broadcast"
        if fault.method == "__supervise__":
            cause = "passed on a failure that it does not handle"
        crash = ActorCrashed(
            str(error.args[0]),
            rank=member.rank,
            host=member.host,
            cause=cause,
            traceback=error.traceback,
        )
        crash.__cause__ = error.__cause__
        self.supervisor.crashed(crash, fault.actor)

    def replace(self, rank: int) -> None:
        """A new process with all its actors takes the rank; every handle then means it.

        Raises Unavailable, ActorCrashed, or ActorError for an actor that cannot be made.
        """
        with self._replacing[rank]:
            self._end_old(self.member(rank))
            (member,) = self._begin([rank])
            try:
                self._join(member)
            except BaseException:
                member.stopping = True
                member.end("was given up")
                member.link.close()  # its host may be closing, and not kill any more
                raise
            if member.crash is not None:  # nobody was told, for it was not a member
                raise member.crash
        self._announce(member)

    def _join(self, member: Member) -> None:
        """It becomes the member of its rank once it has its actors."""
        ready = self.welcome([member])
        with self._stopping:
            if self.stopped:
                raise InvalidUse(f"the mesh {self.name} was stopped meanwhile")
            self._joining.append(member)
        try:
            ready.get()
            wanted = [s for s in self.spawned.values() if member.rank in s.shape.ranks]
            self._make_actors(member, wanted)
            self._members[member.rank] = member
        finally:
            self._joining.remove(member)

    def renew(self, rank: int, actor: int) -> None:
        """This actor anew, in the process that there is. Raises as replace does."""
        member, spawned = self.member(rank), self.spawned.get(actor)
        if spawned is not None:
            member.tell(m.Forget(actor))
            self._make_actors(member, [spawned])

    def _end_old(self, member: Member) -> None:
        if member.crash is None:
            member.stopping = True
            member.end("was replaced")
        if member.process is not None:
            member.process.stop(_STOP)

    def _make_actors(self, member: Member, wanted: Sequence[Spawned]) -> None:
        end = time.monotonic() + self.settings.spawn_deadline
        future: Future[None] = Future(len(wanted), lambda values: None, end, self.check)
        for index, spawned in enumerate(wanted):
            self.spawn_on(member, spawned, future, index, end)
        future.get()

    def _announce(self, member: Member) -> None:
        """To all processes that may have a handle from here."""
        here().moved(self.id, member.rank, self.door(member.rank))
        self._tell_owned(m.Moved(self.id, member.rank, self.door(member.rank)))

    def _tell_owned(self, message: m.Message) -> None:
        for mesh in tuple(here().owned.values()):
            mesh.tell_all(message)

    def tell_all(self, message: m.Message) -> None:
        for member in tuple(self._members):
            member.tell(message)

    def _give_up(self, members: Sequence[Member]) -> None:
        for member in members:
            if member.ready is None:
                member.end(f"did not serve within {self.settings.start_timeout:g} s")

    # ------------------------------------------------------------------------------------------ end
    def _ended(self, member: Member, crash: ActorCrashed) -> None:
        wanted = self._started and member not in self._joining
        if wanted and not self.stopped and member.ready is not None:
            self._tell_owned(m.Gone(member.ready.door, member.host, crash.cause[:4096]))
        if wanted and not self.stopped and not member.stopping:
            self.supervisor.crashed(
                crash, known=lambda: member.told or self._members[member.rank] is not member
            )

    def stop(self, timeout: float = _STOP) -> None:
        """Actors clean up, then their processes end; those that do not are killed. Idempotent."""
        if os.getpid() != self._pid:
            return  # a fork of the owner, whose processes they are
        with self._stopping:
            if self.stopped:
                return
            self.stopped = True
            members = (*self._members, *self._joining)
        self.supervisor.close()
        try:
            _end_all(members, time.monotonic() + timeout)
        except KeyboardInterrupt:
            for member in members:
                if member.process is not None:
                    member.process.kill()
            raise
        finally:
            self._watch.close()
            while self.spawned:
                _, spawned = self.spawned.popitem()
                spawned.release()
            self.host.close()

    def stop_at_exit(self) -> None:
        """What the processes wrote arrives. Actors beside the program's own code end with it."""
        if self.runs:
            self.stop(_EXIT)


class _Here:
    """The reply of a process that serves."""

    failed = heavy = False

    def value(self) -> None:
        return None

    def drop(self) -> None:
        pass


def _settler(future: Future[None], index: int, reply: _Here) -> Callable[[], None]:
    return lambda: future.settle(index, reply)


def _end_all(members: Sequence[Member], end: float) -> None:
    for member in members:
        member.stopping = True
        member.tell(m.Stop())
    for member in members:
        if member.process is not None:
            _await_end(member.process, end)
    for member in members:
        member.link.close()
        if member.process is not None:
            member.process.stop(max(end - time.monotonic(), 0.0))


def _await_end(process: Process, end: float) -> None:
    import concurrent.futures

    try:
        process.ended.result(max(end - time.monotonic(), 0.0))
    except (TimeoutError, concurrent.futures.TimeoutError):
        process.kill()


_open: weakref.WeakSet[Processes] = weakref.WeakSet()


def _stop_all() -> None:
    for each in tuple(_open):
        with contextlib.suppress(Exception):  # the others end, too
            each.stop_at_exit()


atexit.register(_stop_all)
