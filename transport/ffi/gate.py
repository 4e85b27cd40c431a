"""Keeps a native object alive while calls into it run, and turns callers away once it closes.

May import errors and the handle's helpers. No lock: appending to and removing from a list are
atomic, so an entry costs some 100 ns and no caller waits for another.
"""

from __future__ import annotations

import time
from threading import get_ident

from transport.errors import InvalidUse
from transport.ffi import handle


class Gate:
    """`with gate:` around every native call that needs the object; `shut` waits until all left."""

    __slots__ = ("_inside", "closed", "noun", "pid")

    def __init__(self, noun: str) -> None:
        self._inside: list[int] = []  # threads
        self.closed = False
        self.noun = noun
        self.pid = handle.here

    def __enter__(self) -> None:
        # Enter first, look second: `shut` closes first and looks at who is inside second.
        self._inside.append(get_ident())
        if self.closed or self.pid != handle.here:
            self._inside.remove(get_ident())
            self.refuse()

    def __exit__(self, *_: object) -> None:
        self._inside.remove(get_ident())

    def refuse(self) -> None:
        """Raises the InvalidUse that says why nobody may enter."""
        if self.pid != handle.here:
            raise handle.foreign(self.noun, self.pid)
        raise InvalidUse(f"this {self.noun} is closed")

    def holds_this_thread(self) -> bool:
        """Whether a call of this thread is inside: then this is a signal handler or a finalizer."""
        return get_ident() in self._inside

    def shut(self, timeout: float) -> bool:
        """Lets nobody in any more and waits for those inside, whose waits are short slices.

        False: somebody has not left. A Ctrl-C at the wrong instruction can leave an entry behind.
        """
        self.closed = True
        end, pause = time.monotonic() + timeout, 1e-5
        while self._inside:
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 1e-2)
        return True
