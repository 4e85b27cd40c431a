"""What processes wrote, on its way to the owner's own output. May import nest.

A thread of its own: an owner whose output nobody reads must still hear that a process died.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from typing import TYPE_CHECKING, TypeAlias

from transport.errors import InvalidUse
from transport.mesh.hosts import nest

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    Sink: TypeAlias = Callable[[str, int, str], None]


def forward(label: str, stream: int, line: str) -> None:
    """Prints a line as `trainer[3] loss 0.1`, to this process's standard output or error."""
    out = sys.stdout if stream == 1 else sys.stderr
    with contextlib.suppress(OSError, ValueError):  # closed: nobody reads it
        out.write(f"{label} {line}\n")
        out.flush()


def discard(label: str, stream: int, line: str) -> None:
    """For an owner that does not want the lines; the last ones are in the cause of an end."""


class Spool:
    """A sink that waits for nobody: a thread passes on what came. Over LIMIT lines that wait, lines
    are dropped and counted."""

    LIMIT = 20_000

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lines: queue.Queue[tuple[str, int, str] | None] = queue.Queue(self.LIMIT)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="mesh-output", daemon=True)
        self._thread.start()

    def __call__(self, label: str, stream: int, line: str) -> None:
        try:
            if self._dropped:
                self._lines.put_nowait((label, 2, f"({self._dropped} lines before were dropped)"))
                self._dropped = 0
            self._lines.put_nowait((label, stream, line))
        except queue.Full:
            self._dropped += 1

    def close(self, timeout: float) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=timeout)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (item := self._lines.get()) is not None:
            self._sink(*item)


SINKS: dict[str, Sink] = {"forward": forward, "discard": discard}


def sink_of(logs: Sink | str) -> Sink:
    """A function, or the one of that name. Raises InvalidUse."""
    if callable(logs):
        return logs
    if logs not in SINKS:
        raise InvalidUse(f"logs is a function or one of {', '.join(SINKS)}, not {logs!r}")
    return SINKS[logs]


class Printer:
    """Gives every line to `sink(label, stream, line)`, in the order in which each was written."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def run(self, log: socket.socket, label: Callable[[int], str]) -> None:
        """Until the zygote closes its end."""
        with contextlib.suppress(OSError):
            for output in _read(log):
                for line in output.lines:
                    self._sink(label(output.number), output.stream, line)


def _read(log: socket.socket) -> Iterator[nest.Output]:
    with log.makefile("rb") as file:
        while len(head := file.read(nest.LOG_HEAD.size)) == nest.LOG_HEAD.size:
            (length,) = nest.LOG_HEAD.unpack(head)
            data = file.read(length)
            if len(data) < length:
                return
            yield nest.OUTPUT.decode(data)
