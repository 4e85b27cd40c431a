"""Processes on many machines: agents join, are told what to start, and report. May import
introduction, orders, printer, process and strangers.

One thread runs an event loop that has the door and all agents. A process belongs to its agent: when
the agent's connection ends, by a crash or by a lost network, its processes have ended.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import itertools
import logging
import os
import socket
import threading
import time
import weakref
from typing import TYPE_CHECKING

from transport.control.channel import Channel
from transport.errors import TransportError, Unavailable
from transport.mesh.hosts import orders
from transport.mesh.hosts.introduction import TAKEN, guard, owned, party, welcome
from transport.mesh.hosts.printer import Spool, forward
from transport.mesh.process import Cause
from transport.mesh.strangers import Strangers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.control.secret import Secret
    from transport.mesh.hosts.printer import Sink
    from transport.mesh.process import Process, Start

_log = logging.getLogger(__name__)
_KILL_TIMEOUT = 15.0
_LEAVE_TIMEOUT = 15.0
_STRANGERS = 256  # connections that are being proven at once, beside those of our agents


class FleetProcess:
    """A process of an agent. See transport.mesh.process.Process."""

    def __init__(self, fleet: Fleet, agent: Agent, number: int, start: Start) -> None:
        self.rank = start.rank
        self.host = agent.host
        self.agent, self.number = agent, number
        self.begun: concurrent.futures.Future[int] = concurrent.futures.Future()
        self.link: concurrent.futures.Future[socket.socket] = concurrent.futures.Future()
        self.ended: concurrent.futures.Future[Cause] = concurrent.futures.Future()
        self._fleet = fleet

    @property
    def pid(self) -> int:
        return self.begun.result(0)

    @property
    def socket(self) -> socket.socket:
        return self.link.result(0)

    def kill(self) -> None:
        self._fleet.order(self.agent, orders.Kill(self.number))

    def stop(self, timeout: float) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        concurrent.futures.wait([self.ended], timeout)
        if not self.ended.done():
            self.kill()
            concurrent.futures.wait([self.ended], _KILL_TIMEOUT)

    def end(self, cause: Cause) -> None:
        for future in (self.begun, self.link):
            if not future.done():
                future.set_exception(Unavailable(f"rank {self.rank} on {self.host}: {cause}"))
        if not self.ended.done():
            self.ended.set_result(cause)


class Agent:
    """An agent that has joined. Used in the loop's thread, but for what is set once."""

    def __init__(self, channel: Channel, enlisted: orders.Enlist) -> None:
        self.channel = channel
        self.index, self.host = enlisted.index, enlisted.host
        self.processes: dict[int, FleetProcess] = {}
        self.outbox: asyncio.Queue[bytes] = asyncio.Queue()


class Fleet:
    """The agents of one job and their processes: a host of a mesh.

    `doors` listen already; `agents` is how many shall join, `size` how many processes they run
    together when nobody says another number. `logs` as for a local host.
    """

    def __init__(
        self,
        doors: Sequence[socket.socket],
        secret: Secret | None,
        job: str,
        agents: int,
        *,
        size: int = 0,
        name: str = "ranks",
        logs: Sink = forward,
        timeout: float = 300.0,
    ) -> None:
        self.name, self.size = name, size or agents
        self._job, self._wanted, self._timeout = job, agents, timeout
        self._who = party(f"mesh of {job}", secret)
        self._spool = Spool(logs)
        self._numbers = itertools.count(1)
        self._seats: dict[int, int] = {}  # of each rank: its agent
        self._agents: dict[int, Agent] = {}
        self._processes: dict[int, FleetProcess] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._strangers = Strangers(_STRANGERS + 2 * agents, self._serve)
        self._loop = asyncio.new_event_loop()
        self._doors = tuple(doors)
        self._thread = threading.Thread(target=self._run, name="mesh-fleet")
        self._thread.daemon = True
        self._thread.start()
        _fleets.add(self)

    def start(self, ranks: Sequence[Start]) -> Sequence[Process]:
        end = time.monotonic() + self._timeout
        self._gather(end)
        places = self._place(ranks)
        processes = [
            FleetProcess(self, agent, next(self._numbers), start)
            for agent, start in zip(places, ranks)
        ]
        for process, start in zip(processes, ranks):
            self._loop.call_soon_threadsafe(self._begin, process, start)
        try:
            for process in processes:
                process.begun.result(max(end - time.monotonic(), 0.0))
                process.link.result(max(end - time.monotonic(), 0.0))
        except BaseException as error:
            for process in processes:
                process.kill()
            if isinstance(error, concurrent.futures.TimeoutError):
                raise Unavailable(
                    f"no process within {self._timeout:g} s", "raise timeout="
                ) from None
            raise
        return processes

    def order(self, agent: Agent, order: orders.Kill | orders.Leave) -> None:
        """From any thread; nothing happens where the agent is gone."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(agent.outbox.put_nowait, orders.frame(order))

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for agent in self._agents.values():
                self.order(agent, orders.Leave())
            self._changed.wait_for(lambda: not self._agents, _LEAVE_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._spool.close(_LEAVE_TIMEOUT)

    def forget(self) -> None:
        """In a fork of the owner: nothing stays open that tells agents that the owner lives."""
        self._closed = True
        for door in self._doors:
            door.close()
        for agent in self._agents.values():
            agent.channel.close()
        for process in self._processes.values():
            if process.link.done() and process.link.exception() is None:
                process.socket.close()

    # -------------------------------------------------------------------------------------- placing
    def _gather(self, end: float) -> None:
        """Until all agents have joined, the first time; later until there is any."""
        wanted = self._wanted if not self._seats else 1
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._agents) >= wanted, max(end - time.monotonic(), 0.0)
            )
            missing = sorted(set(range(self._wanted)) - self._agents.keys())
            if len(self._agents) < wanted:
                reason = f"{len(missing)} of {self._wanted} processes of the job did not come"
                shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
                raise Unavailable(f"{reason}: {shown}", "look at their output")

    def _place(self, ranks: Sequence[Start]) -> list[Agent]:
        """The first time even shares, in order; a rank that is replaced stays where it was, or
        goes to who has least when that agent is gone.
        """
        each = -(-len(ranks) // self._wanted)
        with self._changed:
            agents = dict(self._agents)
            if not agents:
                raise Unavailable("every process of the job that could start others is gone")
            if not self._seats:
                self._seats = {start.rank: n // each for n, start in enumerate(ranks)}
            for start in ranks:
                if self._seats.get(start.rank) not in agents:
                    crowd = collections.Counter(self._seats.values())
                    self._seats[start.rank] = min(agents, key=lambda index: (crowd[index], index))
            return [agents[self._seats[start.rank]] for start in ranks]

    # ------------------------------------------------------------------------- in the loop's thread
    def _run(self) -> None:
        for door in self._doors:
            door.setblocking(False)
        accepting = [self._loop.create_task(self._strangers.accept(door)) for door in self._doors]
        try:
            self._loop.run_forever()
        finally:
            for task in accepting:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*accepting, return_exceptions=True))
            self._loop.run_until_complete(self._strangers.close())
            self._loop.close()
            for door in self._doors:
                door.close()
            for process in tuple(self._processes.values()):
                process.end(Cause(text="its host is closed"))

    async def _serve(self, sock: socket.socket) -> None:
        with contextlib.closing(Channel(sock)) as channel:
            guard(sock)
            try:
                greeting = await welcome(channel, self._who)
                self._strangers.known()
                if greeting.job != self._job:
                    return  # its job has another door
                if isinstance(greeting, orders.Connect):
                    await self._connect(channel, greeting.number)
                elif greeting.index not in self._agents and greeting.index < self._wanted:
                    await self._command(Agent(channel, greeting))
            except (TransportError, OSError) as error:
                _log.debug("a connection to a mesh ended: %s", error)

    async def _connect(self, channel: Channel, number: int) -> None:
        process = self._processes.get(number)
        if process is None or process.link.done():
            return
        await channel.write(TAKEN)
        process.link.set_result(owned(channel))

    async def _command(self, agent: Agent) -> None:
        writer = self._loop.create_task(_write(agent))
        self._enter(agent)
        try:
            while True:
                body = await agent.channel.read_frame()
                self._hear(agent, orders.decode(body, orders.NEWS))
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self._enter(agent, leaves=True)
            for process in tuple(agent.processes.values()):
                self._processes.pop(process.number, None)
                process.end(Cause(text=f"the connection to {agent.host} ended"))

    def _enter(self, agent: Agent, *, leaves: bool = False) -> None:
        with self._changed:
            if leaves:
                del self._agents[agent.index]
            else:
                self._agents[agent.index] = agent
            self._changed.notify_all()

    def _begin(self, process: FleetProcess, start: Start) -> None:
        agent = process.agent
        if self._agents.get(agent.index) is not agent:
            process.end(Cause(text=f"the connection to {agent.host} ended"))
            return
        self._processes[process.number] = agent.processes[process.number] = process
        begin = orders.Begin(process.number, start.rank, start.name, dict(start.environment))
        try:
            agent.outbox.put_nowait(orders.frame(begin))
        except TransportError as error:
            process.end(Cause(text=str(error)))

    def _hear(self, agent: Agent, news: orders.News) -> None:
        if isinstance(news, orders.Said):
            self._spool(news.label, news.stream, news.line)
            return
        process = agent.processes.get(news.number)
        if process is None:
            return
        if isinstance(news, orders.Begun):
            if not process.begun.done():
                process.begun.set_result(news.pid)
            return
        del agent.processes[news.number], self._processes[news.number]
        process.end(Cause(news.code, news.signal, news.text, news.logs))


async def _write(agent: Agent) -> None:
    await agent.channel.write(TAKEN)
    while True:
        await agent.channel.write(await agent.outbox.get())


_fleets: weakref.WeakSet[Fleet] = weakref.WeakSet()


def _forget_all() -> None:
    for fleet in tuple(_fleets):
        fleet.forget()


os.register_at_fork(after_in_child=_forget_all)
