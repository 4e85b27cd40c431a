"""Completions for event loops: one native queue per loop, an eventfd, and no polling.

May import ffi and errors. C puts a transfer's cookie into the queue and, if the loop has armed it,
makes the eventfd readable; the loop reaps until nothing is left and arms again. Arming says when
something came in between, so no wake-up is lost.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, Status
from transport.ffi import check, ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.engine.core import Core

ENDED, ELSEWHERE = 0, -1  # what `watch` says instead of a cookie

_REAP = 64
_COOKIES = "uint64_t[]"


class LoopQueue:
    """One event loop's completions from one engine. All but `close` runs on the loop's thread."""

    def __init__(self, core: Core, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._core = core
        self._cookies = itertools.count(1)  # 0 says that there are notifications
        self._callbacks: dict[int, list[Callable[[], None]]] = {}
        out = ffi.new("struct tn_queue **")
        check(lib.tn_queue_open(core.native.pointer, out))
        self._queue = out[0]
        self._reaped = ffi.new(_COOKIES, _REAP)
        # A descriptor of our own: it can be taken from the loop after the native queue is gone.
        self._fd = os.dup(lib.tn_queue_fd(self._queue))
        loop.add_reader(self._fd, self._ready)
        lib.tn_queue_arm(self._queue)

    def watch(self, transfer: Any, callback: Callable[[], None]) -> int:
        """Asks that `callback` be called on the loop when a native transfer ends.

        A cookie, for `join`; ENDED: it has ended already; ELSEWHERE: another queue watches it.
        """
        cookie = next(self._cookies)
        self._callbacks[cookie] = [callback]
        status = lib.tn_transfer_watch(transfer, self._queue, cookie)
        if status == Status.PENDING:
            return cookie
        del self._callbacks[cookie]
        if status == Status.NOMEM:
            check(status)
        return ELSEWHERE if status == Status.INVALID else ENDED

    def join(self, cookie: int, callback: Callable[[], None]) -> bool:
        """One more callback for what is watched; False: that has been told already."""
        callbacks = self._callbacks.get(cookie)
        if callbacks is not None and callback not in callbacks:
            callbacks.append(callback)
        return callbacks is not None

    def want_notifications(self, callback: Callable[[], None]) -> None:
        """Asks that `callback` be called once, when a notification comes from now on."""
        self._callbacks.setdefault(0, []).append(callback)
        lib.tn_queue_want_notifications(self._queue, 1)

    def _ready(self) -> None:
        try:
            with self._core.gate:
                self._reap()
        except InvalidUse:  # the engine is closing: `finish` follows
            self.loop.remove_reader(self._fd)

    def _reap(self) -> None:
        while True:
            count = lib.tn_queue_reap(self._queue, self._reaped, _REAP)
            for cookie in self._reaped[0:count]:
                self._call(cookie)
            if count == 0 and lib.tn_queue_arm(self._queue) == 0:
                return

    def _call(self, cookie: int) -> None:
        for callback in self._callbacks.pop(cookie, ()):
            callback()

    def close(self) -> None:
        """From any thread, while the engine is still open: gives the native queue back."""
        queue, self._queue = self._queue, None
        if queue is not None:
            lib.tn_queue_close(queue)

    def finish(self) -> None:
        """From any thread, after the engine was closed: wakes all who wait, and leaves the loop."""
        try:
            self.loop.call_soon_threadsafe(self._leave)
        except RuntimeError:  # the loop is closed, and its waiters are gone with it
            os.close(self._fd)

    def _leave(self) -> None:
        self.loop.remove_reader(self._fd)
        os.close(self._fd)
        for cookie in list(self._callbacks):
            self._call(cookie)


class Queues:
    """The loop queues of one engine."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._by_loop: dict[int, LoopQueue] = {}

    def of_running_loop(self) -> LoopQueue:
        """Call it within the gate."""
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(id(loop))
        if found is not None and found.loop is loop:
            return found
        made = LoopQueue(self._core, loop)
        with self._lock:
            self._forget_closed_loops()
            self._by_loop[id(loop)] = made
        return made

    def detach(self) -> None:
        """Before the engine closes."""
        with self._lock:
            for queue in self._by_loop.values():
                queue.close()

    def finish(self) -> None:
        """After the engine was closed."""
        with self._lock:
            for queue in self._by_loop.values():
                queue.finish()
            self._by_loop.clear()

    def _forget_closed_loops(self) -> None:
        for key, queue in list(self._by_loop.items()):
            if queue.loop.is_closed():
                del self._by_loop[key]
                queue.close()
                queue.finish()
