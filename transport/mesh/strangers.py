"""Connections that have yet to prove who they are, on an event loop. Imports nothing of ours.

One that is silent holds nobody up: when there are too many, the oldest is closed. Whoever is honest
and was closed by that dials again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine
    from typing import Any

    Serve = Callable[[socket.socket], Coroutine[Any, Any, None]]

_log = logging.getLogger(__name__)
_REST = 0.5  # seconds, after the process ran out of descriptors


class Strangers:
    """`serve` owns each socket and closes it on every path; it is cancelled when it must give way.

    It is a stranger's until it has ended or has said `known`.
    """

    def __init__(self, limit: int, serve: Serve) -> None:
        self._limit = limit
        self._serve = serve
        self._waiting: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps no task

    async def accept(self, door: socket.socket) -> None:
        """Until it is cancelled. `door` listens and does not block."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(door)
            except OSError as error:
                _log.warning("a mesh cannot accept connections for now: %s", error.strerror)
                await asyncio.sleep(_REST)
                continue
            self._admit(loop.create_task(self._serve(sock)))
            # While others wait to be accepted sock_accept does not yield; the task must begin.
            await asyncio.sleep(0)

    def known(self) -> None:
        """The running `serve` has proof: it gives way to nobody any more."""
        task = asyncio.current_task()
        if task is not None:
            self._waiting.pop(task, None)

    async def close(self) -> None:
        """Ends all that it serves."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _admit(self, task: asyncio.Task[None]) -> None:
        if len(self._waiting) >= self._limit:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()
        self._waiting[task] = None
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._waiting.pop(task, None)
        self._tasks.discard(task)
