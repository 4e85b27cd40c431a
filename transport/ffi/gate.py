"""Keeps a native object alive while calls into it run, and turns callers away once it closes.

May import errors and the handle's helpers. No lock: appending to and removing from a list are
atomic, so an entry costs some 100 ns and no caller waits for another.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from threading import get_ident
from typing import TYPE_CHECKING

from transport.errors import InvalidUse
from transport.ffi import handle

if TYPE_CHECKING:
    from types import FrameType


class Gate:
    """`with gate:` around every native call that needs the object; `shut` waits until all left."""

    __slots__ = ("_tickets", "closed", "inside", "noun", "pid")

    def __init__(self, noun: str) -> None:
        self.inside: list[tuple[int, int]] = []  # threads, each time with another number
        self._tickets = itertools.count()
        self.closed = False
        self.noun = noun
        self.pid = handle.here

    def entry(self) -> tuple[int, int]:
        """What this thread leaves in `inside` while it is there.

        Who has no time for `with gate:` does the same: append it, look at `closed` and `pid`, call,
        and remove it in any case.
        """
        return get_ident(), next(self._tickets)

    def __enter__(self) -> None:
        # Enter first, look second: `shut` closes first and looks at who is inside second.
        entry = self.entry()
        self.inside.append(entry)
        if self.closed or self.pid != handle.here:
            self.inside.remove(entry)
            self.refuse()

    def __exit__(self, *_: object) -> None:
        here = get_ident()
        for entry in reversed(self.inside):  # misses none while others enter and leave
            if entry[0] == here:
                self.inside.remove(entry)
                return

    def refuse(self) -> None:
        """Raises the InvalidUse that says why nobody may enter."""
        if self.pid != handle.here:
            raise handle.foreign(self.noun, self.pid)
        raise InvalidUse(f"this {self.noun} is closed")

    def holds_this_thread(self) -> bool:
        """Whether a call of this thread is inside: then this is a signal handler or a finalizer."""
        self._forget_strays()
        here = get_ident()
        return any(ident == here for ident, _ in list(self.inside))

    def shut(self, timeout: float) -> bool:
        """Lets nobody in any more and waits for those inside, whose waits are short slices.

        False: somebody has not left.
        """
        self.closed = True
        end, pause = time.monotonic() + timeout, 1e-5
        while self.inside:
            self._forget_strays()
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 1e-2)
        return True

    def _forget_strays(self) -> None:
        """Ctrl-C at the wrong instruction of `with gate:` leaves an entry behind. It is one if its
        thread runs nothing of this package but what closes.
        """
        # Listed before the look: who enters after it is not judged by where it was then.
        entries = list(self.inside)
        running = _threads_inside()
        for entry in entries:
            if entry[0] not in running:
                with contextlib.suppress(ValueError):  # it has left meanwhile
                    self.inside.remove(entry)


# Functions that are on the stack of whoever closes, and that hold no gate themselves.
_CLOSING = {
    ("transport.engine.engine", "close"),
    ("transport.engine.engine", "_close_all"),
    ("transport.engine.core", "close"),
    ("transport.engine.core", "close_undisturbed"),
    ("transport.engine.core", "_close_and_tell"),
    ("transport.types", "__exit__"),
    ("transport.ffi.gate", "shut"),
    ("transport.ffi.gate", "holds_this_thread"),
    ("transport.ffi.gate", "_forget_strays"),
    ("transport.ffi.gate", "_threads_inside"),
}


def _threads_inside() -> set[int]:
    frames = sys._current_frames()
    try:
        return {ident for ident, frame in frames.items() if _is_inside(frame)}
    finally:
        # It holds the frame that holds it. Left to the collector, it would keep what all threads
        # have in their variables, and CPython crashes when it collects memoryviews so.
        frames.clear()


def _is_inside(frame: FrameType | None) -> bool:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("transport.") and (module, frame.f_code.co_name) not in _CLOSING:
            return True
        frame = frame.f_back
    return False
