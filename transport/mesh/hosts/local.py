"""Processes on this machine. May import process, nest, nursery, printer and shares.

All are children of a zygote: a small process that has imported what they need and forks them, which
takes milliseconds where an interpreter that imports torch takes seconds. What cannot be forked
(modules that start threads when they are imported) is started as a fresh interpreter each.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import os
import platform
import socket
import time
from typing import TYPE_CHECKING, Any, Literal

from transport.errors import InvalidUse, Unavailable
from transport.mesh.hosts import nest, shares
from transport.mesh.hosts.nursery import Child, Nursery
from transport.mesh.hosts.printer import Printer, sink_of
from transport.mesh.process_mesh import ProcessMesh

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transport.config import Settings
    from transport.mesh.hosts.printer import Sink
    from transport.mesh.process import Cause, Process, Start

_CLOSE_TIMEOUT = 10.0
_KILL_TIMEOUT = 10.0
_SPARE_TIMEOUT = 5.0  # for a spare to take a rank; a new process is the better one then


class LocalProcess:
    """A process of a nursery. See transport.mesh.process.Process."""

    def __init__(self, nursery: Nursery, child: Child, start: Start, link: socket.socket) -> None:
        self.rank = start.rank
        self.host = platform.node()
        self.socket = link
        self._nursery, self._child = nursery, child
        nursery.lend(link)

    @property
    def pid(self) -> int:
        return self._child.begun.result(0)

    @property
    def ended(self) -> concurrent.futures.Future[Cause]:
        return self._child.ended

    def kill(self) -> None:
        self._nursery.kill(self._child)

    def stop(self, timeout: float) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        concurrent.futures.wait([self.ended], timeout)
        if not self.ended.done():
            self.kill()
            concurrent.futures.wait([self.ended], _KILL_TIMEOUT)


class LocalHost:
    """This machine.

    `preload`: modules that every process has imported before it is asked for. `spares`: so many
    processes are kept that have done so and wait for a rank. `method`: "fork" from a process that
    has imported them, or "spawn" for a fresh interpreter each; None forks where it can.
    `pin="cores"`: each process gets an even share of this machine's cores. `gpus_per_process`: each
    sees that many GPUs, its own; None leaves all visible. `environment`: for all, on top of this
    process's. `logs`: where lines of output go, "forward" to this process's own with the name and
    rank in front, "discard", or a function of (name, 1 or 2, line). `timeout`: seconds within which
    processes must have started. `width`: how many share the machine, where not all of them are in
    the first start.
    """

    name = "local"

    def __init__(
        self,
        *,
        preload: Sequence[str] = (),
        spares: int = 0,
        method: Literal["fork", "spawn"] | None = None,
        pin: Literal["cores"] | None = None,
        gpus_per_process: int | None = None,
        environment: Mapping[str, str] | None = None,
        logs: Sink | Literal["forward", "discard"] = "forward",
        timeout: float = 120.0,
        width: int = 0,
    ) -> None:
        if method not in (None, "fork", "spawn") or pin not in (None, "cores"):
            raise InvalidUse(f"method={method!r}, pin={pin!r}: 'fork', 'spawn'; 'cores'; or None")
        sink = sink_of(logs)
        self._method, self._pin, self._gpus = method, pin, gpus_per_process
        self._timeout, self._wanted, self._width = timeout, spares, width
        self._environment = dict(environment or {})
        self._spares: collections.deque[Child] = collections.deque()
        self._seats: dict[int, int] = {}  # of each rank: which share of the machine is its
        self._preload = tuple(preload)
        self._nursery = Nursery(
            (method or "fork", *preload),
            self._environment,
            Printer(sink),
        )

    def start(self, ranks: Sequence[Start]) -> Sequence[Process]:
        pairs = [socket.socketpair() for _ in ranks]
        try:
            children = self.start_on(ranks, [theirs for _, theirs in pairs])
        except BaseException:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        return [
            LocalProcess(self._nursery, child, start, ours)
            for child, start, (ours, _) in zip(children, ranks, pairs)
        ]

    def start_on(self, ranks: Sequence[Start], links: Sequence[socket.socket]) -> list[Child]:
        """Processes that serve these sockets, which stay the caller's. All of them or none."""
        for start in ranks:
            self._seats.setdefault(start.rank, len(self._seats))
        setups = [self._setup(start) for start in ranks]
        children: list[Child] = []
        try:
            for setup, link in zip(setups, links):
                children.append(self._take(setup, link))
            self._await(children)
        except BaseException:
            for child in children:
                self._nursery.kill(child)
            raise
        while len(self._spares) < self._wanted:
            self._spares.append(self._nursery.fork(fresh=self._fresh))
        return children

    def kill(self, child: Child) -> None:
        self._nursery.kill(child)

    def close(self) -> None:
        while self._spares:
            self._spares.pop().dismiss()
        self._nursery.close(_CLOSE_TIMEOUT)

    @functools.cached_property
    def _fresh(self) -> bool:
        """Whether processes are new interpreters: what the zygote says of its imports decides."""
        try:
            imported = self._nursery.imported.result(self._timeout)
        except concurrent.futures.TimeoutError:
            raise Unavailable(f"nothing was imported within {self._timeout:g} s") from None
        for module, reason in imported.failed.items():
            raise Unavailable(f"preload={module!r} cannot be imported in a process: {reason}")
        if imported.threads > 1 and self._method == "fork":
            raise Unavailable(
                f"importing {', '.join(self._preload)} starts threads, which a fork would lose",
                "leave method=None, or say method='spawn'",
            )
        return self._method == "spawn" or imported.threads > 1

    def _take(self, setup: nest.Setup, link: socket.socket) -> Child:
        """A spare that answers, else a new process."""
        with contextlib.suppress(IndexError):
            while True:
                spare = self._spares.popleft()
                self._nursery.name(spare, setup.name)
                if spare.tell(setup, link, _SPARE_TIMEOUT):
                    return spare
                self._nursery.kill(spare)  # dead, or stopped: it must not serve the link later
        child = self._nursery.fork(fresh=self._fresh)
        self._nursery.name(child, setup.name)
        child.tell(setup, link)
        return child

    def _setup(self, start: Start) -> nest.Setup:
        seat, environment = self._seats[start.rank], dict(start.environment)
        if self._gpus is not None:
            visible = shares.visible_gpus({**os.environ, **self._environment})
            environment |= shares.gpus_of(seat, self._gpus, visible)
        count = max(len(self._seats), self._width)
        cpus = shares.cpus_of(seat, count, shares.cores()) if self._pin else ()
        setup = nest.Setup(f"{start.name}[{start.rank}]", platform.node(), environment, cpus)
        nest.check_size(setup)
        return setup

    def _await(self, children: Sequence[Child]) -> None:
        end = time.monotonic() + self._timeout
        for child in children:
            try:
                child.begun.result(max(end - time.monotonic(), 0.0))
            except concurrent.futures.TimeoutError:
                raise Unavailable(
                    f"a process did not start within {self._timeout:g} s", "raise timeout="
                ) from None


def local(
    count: int | None = None,
    /,
    *,
    name: str = "local",
    settings: Settings | None = None,
    host: Mapping[str, Any] | None = None,
    **sizes: int,
) -> ProcessMesh:
    """Processes on this machine: `local(8)` (of dimension "rank"), `local(replica=2, shard=4)`.

    `settings`: of the mesh and, but for secrets, of its processes. `host`: arguments of LocalHost.
    Raises InvalidUse, Unavailable, or ActorCrashed for a process that ended instead of serving.
    """
    if (count is None) == (not sizes):
        raise InvalidUse("say how many: local(8), or by dimension: local(replica=2, shard=4)")
    wanted = sizes if count is None else {"rank": count}
    return ProcessMesh.start(LocalHost(**(host or {})), wanted, name=name, settings=settings)
