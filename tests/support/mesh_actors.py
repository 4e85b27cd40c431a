"""Actors that tests of the mesh start, by name from a module that their processes can import."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from transport import Actor, InvalidUse, Settings, current_rank, endpoint, local, this_proc


class Probe(Actor):
    """Answers, fails and dies on request."""

    def __init__(self, base=0, fail_on=None):
        if fail_on == current_rank().rank:
            raise ValueError(f"not on {fail_on}")
        self.base = base
        self.heard = []
        self.go = threading.Event()

    @endpoint
    def add(self, number):
        return self.base + number

    @endpoint
    def where(self):
        point = current_rank()
        return point.rank, dict(point), os.getpid()

    @endpoint
    def hear(self, number):
        self.heard.append(number)

    @endpoint
    def all_heard(self):
        return self.heard

    @endpoint
    def echo(self, value):
        return value

    @endpoint
    def total(self, remote):
        return int(remote.fetch().sum())

    @endpoint
    def settings(self):
        return Settings.from_env()

    @endpoint
    def modules(self):
        return [name for name in ("torch", "numpy", "transport.ffi") if name in sys.modules]

    @endpoint
    def fail(self, error):
        raise error

    @endpoint
    def unpicklable(self):
        class Local(Exception):
            def __reduce__(self):
                raise TypeError("never")

        raise Local("words stay")

    @endpoint
    def of_two(self):
        class OfTwo(Exception):
            def __init__(self, what, why):
                super().__init__(f"{what}: {why}")
                self.why = why

        raise OfTwo("it", "because")

    @endpoint
    def call_own(self, me):
        return me.add.call_one(1).get(60)

    @endpoint
    def lock(self):
        return threading.Lock()

    @endpoint
    def hang(self):
        self.go.wait()

    @endpoint
    def count_heard(self):
        return len(self.heard), self.heard == sorted(self.heard)

    @endpoint
    def flood_itself(self, me, count):
        for number in range(count):
            me.hear.broadcast(number)

    @endpoint
    def exit(self, code):
        sys.exit(code)

    @endpoint
    def end(self, code):
        print("my last words", flush=True)
        os._exit(code)

    @endpoint
    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Slow(Actor):
    """Is never made."""

    def __init__(self):
        threading.Event().wait()


class Meeting(Actor):
    """Async endpoints that wait for each other, and a sync one."""

    def __init__(self):
        self.came = []
        self.opened = None

    @endpoint
    async def wait_for_open(self, number):
        self.came.append(number)
        if self.opened is None:
            self.opened = asyncio.Event()
        await self.opened.wait()
        return number

    @endpoint
    def seen(self):
        return list(self.came)

    @endpoint
    def where(self):
        point = current_rank()
        return point.rank, dict(point)

    @endpoint
    async def where_async(self):
        return current_rank().rank, dict(current_rank())

    @endpoint
    async def add_own(self, me, number):
        """Calls itself; `get` would wait for ever."""
        try:
            me.seen.call_one().get(60)
        except InvalidUse as error:
            return str(error), await me.seen.call_one() + [number]

    @endpoint
    async def open(self):
        if self.opened is None:
            self.opened = asyncio.Event()
        self.opened.set()

    @endpoint
    async def fail(self):
        raise KeyError("async")

    @endpoint
    async def cancel(self):
        raise asyncio.CancelledError

    @endpoint
    async def cancel_next(self):
        """The task of the next call: nearly always before its first step."""
        mine = {asyncio.current_task(), *self.own_tasks()}
        while not (others := asyncio.all_tasks() - mine):  # noqa: ASYNC110
            await asyncio.sleep(0)  # to run before a task that is made next
        for task in others:
            task.cancel()

    def own_tasks(self):
        """Those that are not of calls."""
        return [task for task in asyncio.all_tasks() if "_perform" not in repr(task.get_coro())]

    @endpoint
    def interrupt(self):
        raise KeyboardInterrupt


class Tidy(Actor):
    """Writes a file when it is cleaned up."""

    def __init__(self, path):
        self.path = path

    @endpoint
    def nothing(self):
        return None

    def __cleanup__(self, error):
        Path(f"{self.path}.{current_rank().rank}").write_text(repr(error))


class Caller(Actor):
    """Calls other actors, which it is given."""

    @endpoint
    def add(self, others, number):
        return others.add.call(number).get(60).values()

    @endpoint
    async def add_async(self, others, number):
        return (await others.add.call(number)).values()

    @endpoint
    def hear(self, other, numbers):
        for number in numbers:
            other.hear.broadcast(number)
        return other.all_heard.call_one().get(60)

    @endpoint
    def give_back(self, others):
        return others

    @endpoint
    def what_fails(self, other, method, deadline):
        try:
            getattr(other, method).options(deadline=deadline).call_one().get(60)
        except Exception as error:
            return type(error).__name__, str(error)

    @endpoint
    def beside(self):
        probe = this_proc().spawn("beside", Probe, 5)
        return probe.add.call_one(1).get(60), probe.where.call_one().get(60)[2] == os.getpid()


class Parent(Actor):
    """Owns a mesh of its own."""

    def __init__(self, handles, where):
        self.handles = handles
        self.where = where
        self.told = []
        self.mesh = local(2, name="children")
        self.children = self.mesh.spawn("child", Probe)

    def __supervise__(self, failure):
        self.told.append((failure.rank, failure.cause))
        return self.handles

    @endpoint
    def kill(self, rank):
        self.children.slice(rank=rank).kill.broadcast()

    @endpoint
    def heard(self):
        return self.told

    @endpoint
    def pids(self):
        return [pid for _, _, pid in self.children.where.call().get(60).values()]

    def __cleanup__(self, error):
        self.mesh.stop()


class AsyncParent(Parent):
    async def __supervise__(self, failure):
        await asyncio.sleep(0)
        return super().__supervise__(failure)

    @endpoint
    async def nothing(self):
        return None
