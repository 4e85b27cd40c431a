"""Who reads the links of a process: whichever thread waits for something. Imports types only.

A thread that waits for an answer takes the wheel and reads the sockets itself, so that an answer
costs no hand-over between threads. While nobody waits a background thread watches; it also does
what must be done in time (heartbeats, deadlines). Handlers run on the thread that drives: they
never block, and never run a user's code.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import select
import threading
import time
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    Handler: TypeAlias = Callable[[int], None]
    Duty: TypeAlias = Callable[[float], float]

logger = logging.getLogger(__name__)

_IN = select.EPOLLIN
_ONCE = select.EPOLLIN | select.EPOLLONESHOT
_PAUSE = 0.1
_BATCH = 64  # events that are looked at before the waiter's own condition is
_LOOKS = 200e-6  # seconds of looking before a driver sleeps: waking it takes about as long
_BRISK = 500e-6  # seconds that a wait took after which the next is worth looking
_KEPT = 500e-6  # seconds of giving way after which somebody else keeps the processor
_CROWDED = 0.1  # seconds without looking from then on


class Gate:
    """What one thread waits for on a wheel. It can be closed and used again."""

    __slots__ = ("_park", "_wheel", "driver", "open")

    def __init__(self, wheel: Wheel) -> None:
        self.open = False
        self.driver = 0  # the thread that drives because it waits for this
        self._wheel = wheel
        self._park = threading.Lock()
        self._park.acquire()

    def set(self) -> None:
        """Lets the waiter go on. From any thread."""
        self.open = True
        driver = self.driver
        if driver:
            if driver != threading.get_ident():
                self._wheel.nudge()
        else:
            self.poke()

    def poke(self) -> None:
        """Lets a waiter that sleeps look again."""
        with contextlib.suppress(RuntimeError):  # it does not sleep
            self._park.release()

    def sleep(self, seconds: float) -> None:
        self._park.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


class Wheel:
    """The sockets of this process, and who watches them. Lives as long as the process."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._guard = select.epoll()  # watches the other one while nobody drives
        self._bell = _Bell(self._epoll)  # ends a round of the driver
        self._alarm = _Bell(self._guard)  # ends the sleep of the background thread
        self._guard.register(self._epoll.fileno(), _ONCE)
        # Reentrant only so that its owner is known: an interrupt may come right after acquire().
        self._lock = threading.RLock()
        self._handlers: dict[int, Handler] = {}
        self._sleepers: dict[Gate, None] = {}
        self._duties: list[Duty] = []
        self._later: collections.deque[Callable[[], None]] = collections.deque()
        self._planned = 0.0  # when the background thread wakes by itself
        self._brisk = False  # whether what the last driver waited for came soon
        self._crowded = 0.0  # until when looking would only delay others
        threading.Thread(target=self._watch, name="mesh links", daemon=True).start()

    # -------------------------------------------------------------------------------------- sockets
    def add(self, fd: int, handler: Handler) -> None:
        """`handler` is told the events (epoll(7)) of a descriptor that does not block."""
        self._handlers[fd] = handler
        self._epoll.register(fd, _IN)

    def want_room(self, fd: int, wanted: bool) -> None:
        """Whether the handler is also told when the descriptor is writable."""
        self._epoll.modify(fd, _IN | select.EPOLLOUT if wanted else _IN)

    def remove(self, fd: int) -> None:
        """Before the descriptor is closed, by its handler."""
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    # ----------------------------------------------------------------------------------------- time
    def attend(self, duty: Duty) -> None:
        """Calls `duty(now)` from now on; each time it says when next (time.monotonic)."""
        self._duties.append(duty)
        self.sooner(0.0)

    def dismiss(self, duty: Duty) -> None:
        with contextlib.suppress(ValueError):
            self._duties.remove(duty)

    def sooner(self, when: float) -> None:
        """The duties are wanted at `when`, if they were not before."""
        if when < self._planned:
            self._alarm.ring()

    def later(self, action: Callable[[], None]) -> None:
        """Runs it on the background thread. Takes no lock: finalizers may call it."""
        self._later.append(action)
        self._alarm.ring()

    # -------------------------------------------------------------------------------------- driving
    def wait(self, gate: Gate, end: float) -> bool:
        """Whether the gate opened before `end` (time.monotonic). The caller drives if it can."""
        while not gate.open:
            if time.monotonic() >= end:
                return False
            try:
                if self._lock.acquire(blocking=False):
                    self._drive(gate, end)
                    continue
            finally:
                gate.driver = 0
                try:
                    self._let_go()
                except BaseException:  # Ctrl-C in the middle of it: others could never drive again
                    self._let_go()
                    self._guard.modify(self._epoll.fileno(), _ONCE)
                    raise
            self._sleep(gate, end)
        return True

    def _drive(self, gate: Gate, end: float) -> None:
        gate.driver = threading.get_ident()
        self._guard.modify(self._epoll.fileno(), 0)
        begin = time.monotonic()
        if self._brisk and begin >= self._crowded:
            self._look_out(gate, begin, end)
        while not gate.open:
            left = end - time.monotonic()
            if left <= 0:
                return
            self._round(left)
        self._brisk = time.monotonic() - begin < _BRISK

    def _look_out(self, gate: Gate, now: float, end: float) -> None:
        """Rounds without sleep, from which nobody needs to wake it. Who else is runnable has the
        processor in between; where that is somebody who keeps it, a sleeper comes back sooner."""
        end = min(end, now + _LOOKS)
        while now < end:
            self._round(0.0)
            if gate.open:
                return
            before = time.monotonic()
            os.sched_yield()
            now = time.monotonic()
            if now - before > _KEPT:
                self._crowded = now + _CROWDED
                return

    def _let_go(self) -> None:
        if self._lock._is_owned():  # type: ignore[attr-defined]
            self._lock.release()
            self._guard.modify(self._epoll.fileno(), _ONCE)

    def _sleep(self, gate: Gate, end: float) -> None:
        self._sleepers[gate] = None
        try:
            if not gate.open:
                gate.sleep(end - time.monotonic())
        finally:
            self._sleepers.pop(gate, None)

    def nudge(self) -> None:
        """Lets the driver look again at what it waits for."""
        self._bell.ring()

    def _round(self, seconds: float) -> None:
        timeout = -1 if seconds == float("inf") else min(seconds, 3600.0)
        for fd, events in self._epoll.poll(timeout, _BATCH):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
            elif fd == self._bell.fd:
                self._bell.hush()

    # ----------------------------------------------------------------------------------- background
    def _watch(self) -> None:
        while True:
            try:
                self._look()
            except Exception:
                logger.exception("a link's handler failed")
                time.sleep(_PAUSE)  # whatever it is, it must not take a CPU

    def _look(self) -> None:
        now = time.monotonic()
        self._planned = float("inf")  # what is wanted from here on rings, whatever duties say
        self._planned = min([duty(now) for duty in tuple(self._duties)], default=now + 60.0)
        ready = self._guard.poll(max(min(self._planned - now, 60.0), 0.0))
        if any(fd == self._alarm.fd for fd, _ in ready):
            self._alarm.hush()
        while self._later:
            self._later.popleft()()
        if self._lock.acquire(blocking=False):
            try:
                self._round(0.0)
            finally:
                self._let_go()
            self._pass_on()

    def _pass_on(self) -> None:
        """Somebody who waits and found the wheel taken drives from now on."""
        with contextlib.suppress(RuntimeError):  # changed meanwhile: it is awake already
            gate = next(reversed(self._sleepers), None)
            if gate is not None:
                gate.poke()


class _Bell:
    """An eventfd in an epoll."""

    def __init__(self, epoll: select.epoll) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        epoll.register(self.fd, _IN)

    def ring(self) -> None:
        os.eventfd_write(self.fd, 1)

    def hush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)


_shared: tuple[int, Wheel] | None = None
_making = threading.Lock()


def shared() -> Wheel:
    """This process's wheel, made when it is first asked for; a forked child gets its own."""
    global _shared
    pid = os.getpid()
    if _shared is None or _shared[0] != pid:
        with _making:
            if _shared is None or _shared[0] != pid:
                _shared = pid, Wheel()
    return _shared[1]
