"""An actor in its process: its thread, what waits for it, and its answers.

May import actor, context, failure, messages, payload, wheel.

The thread of a sync actor drives the wheel while it has nothing to do, so a call that comes is run
by the thread that read it. That of an async actor runs an event loop.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.errors import ActorCrashed, InvalidUse, PeerLost
from transport.mesh import context, failure, payload
from transport.mesh import messages as m
from transport.mesh.actor import Actor, EndpointMethod, endpoints
from transport.mesh.shape import Point
from transport.mesh.wheel import Gate

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from transport.mesh.link import Body, Link
    from transport.mesh.rooms import Room
    from transport.mesh.serve import Server

logger = logging.getLogger(__name__)

_PATIENCE = 2.0  # seconds in which a result gets to a room of the caller's, or is lent


@dataclass(slots=True)
class Job:
    """A call that came."""

    link: Link
    message: m.Call
    body: Body
    came: float
    room: Room | None = None  # that it names
    arguments: Callable[[], tuple[Any, Any]] | None = None  # once they are decoded


class Stage:
    """Made by a Spawn message; answers it once the actor is made."""

    def __init__(self, server: Server, link: Link, spawn: m.Spawn, body: Body) -> None:
        self.owner = link
        self.number = spawn.number  # of the message that made it
        self._server = server
        self._spawn = spawn
        self._body: Body = body
        # None: end; a crash: of a process that this actor owns.
        self._jobs: collections.deque[Job | ActorCrashed | None] = collections.deque()
        self._gate = Gate(server.wheel)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home: contextvars.Context | None = None  # in which the loop takes jobs
        self._begun = False
        self._instance: Actor | None = None
        self._endpoints: dict[str, EndpointMethod[Any, Any, Any]] = {}
        self._crash: ActorCrashed | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken: dict[int, Job] = {}  # that the loop has not begun with, by id
        self._pulling = False  # whether tensors of the one before come, beside the loop
        self.over = threading.Event()
        self.point = Point(spawn.rank, dict(spawn.sizes))
        threading.Thread(target=self._run, name=f"actor {spawn.name}", daemon=True).start()

    def put(self, job: Job | ActorCrashed | None) -> None:
        """From any thread; calls from the driving one."""
        self._jobs.append(job)
        if self.over.is_set():
            self._refuse_all()
        elif self._loop is None:
            self._gate.set()
        else:
            with contextlib.suppress(RuntimeError):  # it has ended
                # Not in the context of the thread that puts: that may be another actor's.
                self._loop.call_soon_threadsafe(self._take_async, context=self._home)

    # ------------------------------------------------------------------------------------ the actor
    def _run(self) -> None:
        try:
            if self._make():
                self._live()
        except SystemExit as error:
            self._server.exit(error.code)
        finally:
            self.over.set()
            self._refuse_all()

    def _live(self) -> None:
        if any(each.is_async for each in self._endpoints.values()):
            try:
                self._run_async()
            except BaseException as error:  # of a task that an endpoint began: it ends the loop
                if self._exits(error):
                    raise
                self._broke("a task of its event loop", "task", error)
                self._loop = None
            else:
                return
        self._run_sync()

    def _exits(self, error: BaseException) -> bool:
        """Whether it is an actor's sys.exit that ends the process."""
        return isinstance(error, SystemExit) and self._server.may_exit

    def _make(self) -> bool:
        name, number = self._spawn.name, self._spawn.number
        here = context.ActorContext(
            name,
            self.point,
            self._spawn.actor,
            door=self._server.door.text,
            thread=threading.get_ident(),
            supervise=self.put,
            meet=self._meet,
        )
        context.enter(here)
        try:
            given = payload.Payload(self._body, self._spawn.held)
            actor, arguments, keywords = _decoded(given, _CONTEXT, f"{name}.__init__")
            self._endpoints = endpoints(actor)
            self._instance = actor(*arguments, **keywords)
        except BaseException as error:
            if self._exits(error):
                raise
            self._crash = ActorCrashed(
                f"{name} could not be made", rank=self._spawn.rank, cause=failure.words(error)
            )
            self._server.forget(self._spawn.actor)
            self._fail(self.owner, number, error)
            return False
        finally:
            self._body = b""
        context.enter(dataclasses.replace(here, instance=self._instance))
        self._answer(self.owner, number, None)
        return True

    def _meet(self, key: str, at: str) -> None:
        """Raises PeerLost."""
        self.owner.send(m.Meet(self._spawn.actor, key, at))

    # ----------------------------------------------------------------------------------------- sync
    def _run_sync(self) -> None:
        while True:
            job = self._next()
            if job is None:
                break
            if isinstance(job, ActorCrashed):
                self._supervised(job, self._supervise(job))
            else:
                self._perform(job)
        self._clean_up(None)

    def _next(self) -> Job | ActorCrashed | None:
        while not self._jobs:
            self._gate.open = False
            if not self._jobs:
                self._server.wheel.wait(self._gate, float("inf"))
        return self._jobs.popleft()

    def _perform(self, job: Job) -> None:
        self._run_endpoint(job)
        self._server.rooms.done(job.link, job.message)  # now that the arguments may be gone

    def _run_endpoint(self, job: Job) -> None:
        try:
            method, arguments, keywords = self._prepare(job)
            result = method(self._instance, *arguments, **keywords)
        except BaseException as error:  # whatever it is, somebody waits for it
            if self._exits(error):
                raise
            self._failed(job, error)
        else:
            self._answer(job.link, job.message.number, result, job.message.keep)

    def _prepare(self, job: Job) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        self._taken.pop(id(job), None)
        if self._crash is not None:
            raise self._crash
        call = job.message
        found = self._endpoints.get(call.method)
        if found is None:
            raise InvalidUse(f"{type(self._instance).__name__} has no endpoint {call.method!r}")
        arguments, keywords = self._decode(job) if job.arguments is None else job.arguments()
        job.body, job.arguments = b"", None
        return found.function, arguments, keywords

    def _decode(self, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = job.message
        until = payload.Context(deadline=job.came + call.left, room=job.room)
        what = f"{self._spawn.name}.{call.method}"
        found: tuple[Any, Any] = _decoded(payload.Payload(job.body, call.held), until, what)
        return found

    # ---------------------------------------------------------------------------------------- async
    def _run_async(self) -> None:
        import asyncio

        try:
            asyncio.run(self._serve_async())
        finally:
            self._jobs.extendleft(reversed(self._taken.values()))

    async def _serve_async(self) -> None:
        import asyncio

        self._ended = asyncio.Event()
        self._home = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._take_async()  # what came before there was a loop
        await self._ended.wait()
        for task in tuple(self._tasks):
            task.cancel()
        cleaned = self._clean_up(None)
        try:
            if inspect.isawaitable(cleaned):
                await cleaned
        except BaseException as error:
            self._complain("__cleanup__", error)

    def _take_async(self) -> None:
        assert self._loop is not None
        while self._jobs and not self._pulling:
            job = self._jobs.popleft()
            if job is None:
                self._ended.set()
                return
            if isinstance(job, ActorCrashed):
                self._begin(self._supervise_async(job))
                continue
            self._taken[id(job)] = job
            if job.message.held:
                self._pulling = True
                pulled = self._loop.run_in_executor(None, self._beside(job))
                pulled.add_done_callback(functools.partial(self._pulled, job))
            else:
                self._begin_async(job)

    def _beside(self, job: Job) -> Callable[[], None]:
        within = contextvars.copy_context()
        return lambda: within.run(self._pull, job)

    def _pull(self, job: Job) -> None:
        """Beside the loop, whose other tasks go on. Raises nothing: that is for the endpoint."""
        try:
            job.arguments = functools.partial(_given, self._decode(job))
        except BaseException as error:
            job.arguments = functools.partial(_raise, error)

    def _pulled(self, job: Job, _: object) -> None:
        """What it needs is here: it begins, and those that came after it may."""
        self._pulling = False
        if not self._ended.is_set() and id(job) in self._taken:
            self._begin_async(job)
            self._take_async()

    def _begin_async(self, job: Job) -> None:
        assert self._loop is not None
        if self._is_async(job):
            task = self._begin(self._perform_async(job))
            # Not a `finally` of the task: one that is cancelled before its first step runs none.
            task.add_done_callback(functools.partial(self._performed, job))
        else:
            self._loop.call_soon(self._perform, job)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop alone would not keep it
        task.add_done_callback(self._tasks.discard)
        return task

    def _performed(self, job: Job, task: asyncio.Task[None]) -> None:
        if id(job) in self._taken:  # it was cancelled before it began
            if self._ended.is_set():
                return  # the end of the actor answers it
            del self._taken[id(job)]
            self._failed(job, self._cancelled(job))
        self._server.rooms.done(job.link, job.message)

    def _cancelled(self, job: Job) -> Exception:
        words = f"{self._spawn.name}.{job.message.method} was cancelled before it began"
        return InvalidUse(f"{words}: the actor cancels tasks that it has not made")

    def _is_async(self, job: Job) -> bool:
        found = self._endpoints.get(job.message.method)
        return found is not None and found.is_async

    async def _perform_async(self, job: Job) -> None:
        try:
            method, arguments, keywords = self._prepare(job)
            result = await method(self._instance, *arguments, **keywords)
        except BaseException as error:  # CancelledError, too: somebody waits for it
            if self._exits(error):
                raise
            self._failed(job, error)
        else:
            self._answer(job.link, job.message.number, result, job.message.keep)

    # -------------------------------------------------------------------------------- supervision
    def _supervise(self, crash: ActorCrashed) -> Any:
        """What the actor says, or a coroutine that does."""
        assert self._instance is not None
        try:
            said = self._instance.__supervise__(crash)
            return said if inspect.isawaitable(said) else bool(said)
        except BaseException as error:
            self._complain("__supervise__", error)
        return False

    async def _supervise_async(self, crash: ActorCrashed) -> None:
        said = self._supervise(crash)
        try:
            said = bool(await said if inspect.isawaitable(said) else said)
        except BaseException as error:
            self._complain("__supervise__", error)
            said = False
        self._supervised(crash, said)

    def _complain(self, method: str, error: BaseException) -> None:
        """Nobody waits for it, and the actor goes on."""
        if self._exits(error):
            raise error
        logger.error("%s.%s failed", self._spawn.name, method, exc_info=error)

    def _supervised(self, crash: ActorCrashed, handled: bool) -> None:
        """What this actor does not handle its owner hears of."""
        if not handled:
            with contextlib.suppress(PeerLost):
                self.owner.send(m.Fault(self._spawn.actor, "__supervise__"), failure.pack(crash))

    # ------------------------------------------------------------------------------------ answering
    def _answer(self, link: Link, number: int, result: Any, keep: str = "") -> None:
        if not number:
            return
        offers, room = self._server.offers(link), 0
        try:
            # The actor may change what it gave before the caller has read it: that is copied.
            end = time.monotonic() + _PATIENCE
            context = payload.Context("the caller", end, keep=keep, copy=True, offers=offers)
            encoded = payload.encode(result, context)
            room = encoded.room
            if encoded.held and encoded.release is not None:
                self._server.hold(link, number, encoded.release)
            link.send(m.Answer(number, True, encoded.held, room, encoded.large), encoded.data)
        except BaseException as error:  # of the link, or whatever pickling the result does
            if room and offers is not None:
                offers.leave(room)
            self._server.release(link, number)
            self._fail(link, number, error)

    def _failed(self, job: Job, error: BaseException) -> None:
        call = job.message
        if call.number:
            self._fail(job.link, call.number, error)
        if (not call.number or call.broadcast) and error is not self._crash:
            self._broke("a broadcast", call.method, error)

    def _broke(self, where: str, method: str, error: BaseException) -> None:
        """Nobody waits for it: all later calls fail, and the owner hears of it."""
        cause = f"raised {type(error).__name__} in {where}"
        message = f"{self._spawn.name}.{method} {cause}: {failure.words(error)}"
        self._crash = ActorCrashed(message, rank=self._spawn.rank, cause=cause)
        with contextlib.suppress(PeerLost):
            self.owner.send(m.Fault(self._spawn.actor, method), failure.pack(error, skip=1))

    def _fail(self, link: Link, number: int, error: BaseException) -> None:
        with contextlib.suppress(PeerLost):
            packed = failure.pack(error, skip=1, own=error is self._crash)
            link.send(m.Answer(number, False), packed)

    def _refuse_all(self) -> None:
        """Its thread ends, or has: whoever put them, they have an answer."""
        if self._crash is None:
            name, rank = self._spawn.name, self._spawn.rank
            self._crash = ActorCrashed(f"{name} has ended", rank=rank, cause="has ended")
        with contextlib.suppress(IndexError):  # another thread took the last
            while self._jobs:
                job = self._jobs.popleft()
                if isinstance(job, Job):
                    if job.message.number:
                        self._fail(job.link, job.message.number, self._crash)
                    self._server.rooms.done(job.link, job.message)

    def _clean_up(self, error: BaseException | None) -> Any:
        """A coroutine where the actor's `__cleanup__` is one."""
        assert self._instance is not None
        try:
            return self._instance.__cleanup__(error)
        except BaseException as raised:
            self._complain("__cleanup__", raised)
        return None


_CONTEXT = payload.Context("the caller")


def _given(arguments: tuple[Any, Any]) -> tuple[Any, Any]:
    return arguments


def _raise(error: BaseException) -> Any:
    raise error


def _decoded(given: payload.Payload, until: payload.Context, what: str) -> Any:
    """Whatever unpickling it does: it is no endpoint, and no sys.exit of the actor's."""
    try:
        return payload.decode(given, until)
    except SystemExit as error:
        raise InvalidUse(f"what {what} was given ends the process when it is unpickled") from error


def job(link: Link, message: m.Call, body: Body, room: Room | None) -> Job:
    return Job(link, message, body, time.monotonic(), room)
