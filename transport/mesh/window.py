"""How far a sender of broadcasts may be ahead of the process that does them. May import member's
types, messages, wheel and errors.

Nobody answers a broadcast, so each few of them one is a mark: it is answered, which costs a message
for many. Whoever finds too many marks unanswered waits for one.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from transport.errors import DeadlineExceeded
from transport.mesh.wheel import Gate

if TYPE_CHECKING:
    from transport.mesh.future import Reply
    from transport.mesh.member import Sink
    from transport.mesh.wheel import Wheel

_CALLS = 64  # from one mark to the next
_BYTES = 1 << 20  # the same, where bodies are large
_MARKS = 16  # that may be open: a thousand broadcasts, or so many MiB


class Window:
    """Of one process, for all broadcasts to it from here. A sink: marks are answered to it."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._lock = threading.Lock()
        self._calls = self._bytes = 0  # since the last mark
        self._open = 0
        self._gates: list[Gate] = []

    def enter(self, size: int, end: float, name: str, *, answered: bool, own: bool) -> bool:
        """Whether a broadcast whose body has this size is to be a mark; one that is answered is.

        Blocks while too many are open, until `end` (time.monotonic), but not the `own` thread of
        whom it is for. Raises DeadlineExceeded.
        """
        while True:
            with self._lock:
                if self._calls < _CALLS and self._bytes < _BYTES and not answered:
                    self._calls += 1
                    self._bytes += size
                    return False
                if self._open < _MARKS or own:
                    self._calls = self._bytes = 0
                    self._open += 1
                    return True
                gate = Gate(self._wheel)
                self._gates.append(gate)
            if not self._wheel.wait(gate, end) and time.monotonic() >= end:
                raise DeadlineExceeded(
                    f"{name} has not done the broadcasts that it was sent before, about "
                    f"{_MARKS * _CALLS} or {_MARKS * _BYTES >> 20} MiB of them: it is too slow, or "
                    "waits for who sends them"
                )

    def settle(self, index: int, reply: Reply) -> None:
        """A mark was answered, or never will be: what it raised its mesh's owner hears of."""
        with self._lock:
            self._open -= 1
            gates, self._gates = self._gates, []
        for gate in gates:
            gate.set()


class Both:
    """A sink for a mark whose sender holds something for it until all have it."""

    def __init__(self, window: Window, other: Sink) -> None:
        self._window = window
        self._other = other

    def settle(self, index: int, reply: Reply) -> None:
        self._window.settle(index, reply)
        self._other.settle(index, reply)
