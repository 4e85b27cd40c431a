"""Who has connected and has not proven itself yet: how many, for how long, and what is logged.

May import channel, doors, handshake, errors. A stranger costs one small task; when there are too
many the source that has most loses its oldest, so that idle or hostile connections never keep a
good one out.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from transport.control.channel import Channel
from transport.control.handshake import check_user
from transport.control.messages import printable
from transport.errors import TransportError

if TYPE_CHECKING:
    import socket

    from transport.control.doors import Door
    from transport.control.secret import Secret

logger = logging.getLogger(__name__)

MAX_STRANGERS = 64
_BURST = 64  # connections taken before the loop gets its turn
_PAUSE = 0.5  # after the process ran out of descriptors
_MAX_SOURCES = 256  # that are remembered as logged
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Guest:
    """One inbound connection."""

    def __init__(self, channel: Channel, source: str, came_at: int) -> None:
        self.channel = channel
        self.source = source
        self.came_at = came_at
        self.task: asyncio.Task[None] | None = None


Serve: TypeAlias = Callable[[Guest], Coroutine[Any, Any, None]]


class Reception:
    """Accepts on every door and gives each guest to `serve`, which must end within its deadline."""

    def __init__(
        self,
        secret: Secret | None,
        serve: Serve,
        clock: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        limit: int = MAX_STRANGERS,
    ) -> None:
        self._loop = loop
        self._secret = secret
        self._serve = serve
        self._clock = clock
        self._limit = limit
        self._doors: tuple[Door, ...] = ()
        self._strangers: dict[Guest, None] = {}  # in order of arrival
        self._tasks: dict[asyncio.Task[None], Guest] = {}
        self._logged: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._closed = False
        self._exhausted = False  # and that has been logged

    def open(self, doors: tuple[Door, ...]) -> None:
        self._doors = doors
        for door in doors:
            self._resume(door.sock)

    def proven(self, guest: Guest) -> None:
        """It counts no longer as a stranger."""
        self._strangers.pop(guest, None)

    def complain(self, source: str, text: str) -> None:
        """Once per source: a hostile one must not fill the log."""
        level = logging.DEBUG if source in self._logged else logging.WARNING
        self._logged[source] = None
        if len(self._logged) > _MAX_SOURCES:
            self._logged.popitem(last=False)
        logger.log(level, "dropped a connection from %s: %s", source, printable(text))

    async def close(self) -> None:
        self._closed = True
        for door in self._doors:
            self._loop.remove_reader(door.sock.fileno())
            door.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _resume(self, server: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(server.fileno(), self._accept, server)

    def _accept(self, server: socket.socket) -> None:
        for _ in range(_BURST):
            try:
                sock, name = server.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._rest(server, error)
                return
            self._exhausted = False
            self._welcome(sock, name)

    def _rest(self, server: socket.socket, error: OSError) -> None:
        """The connection stays in the backlog; asking again at once would spin."""
        level = logging.DEBUG if self._exhausted else logging.WARNING
        self._exhausted = True
        logger.log(level, "cannot accept connections for now: %s", error.strerror)
        self._loop.remove_reader(server.fileno())
        self._loop.call_later(_PAUSE, self._resume, server)

    def _welcome(self, sock: socket.socket, name: Any) -> None:
        try:
            channel = Channel(sock)
        except OSError as error:
            sock.close()
            logger.debug("a connection broke at once: %s", error)
            return
        source = f"uid {channel.uid}" if channel.is_unix else str(name[0])
        try:
            check_user(channel, self._secret)
        except TransportError as error:
            channel.close()
            self.complain(source, str(error))
            return
        self._begin(Guest(channel, source, self._clock()))

    def _begin(self, guest: Guest) -> None:
        guest.task = self._loop.create_task(self._serve(guest))
        self._strangers[guest] = None
        self._tasks[guest.task] = guest
        # Not a `finally` of the task: one that is cancelled before its first step runs none.
        guest.task.add_done_callback(self._leave)
        self._make_room()

    def _leave(self, task: asyncio.Task[None]) -> None:
        guest = self._tasks.pop(task)
        guest.channel.close()
        self._strangers.pop(guest, None)
        if not task.cancelled() and task.exception() is not None:
            logger.error("serving %s failed", guest.source, exc_info=task.exception())

    def _make_room(self) -> None:
        if len(self._strangers) <= self._limit:
            return
        crowd = collections.Counter(guest.source for guest in self._strangers)
        most = max(crowd.values())
        victim = next(guest for guest in self._strangers if crowd[guest.source] == most)
        del self._strangers[victim]
        if victim.task is not None:
            victim.task.cancel()
        self.complain(victim.source, f"over {self._limit} connections have not proven themselves")
