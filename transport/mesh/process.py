"""What the mesh asks of whoever starts processes. Imports the standard library and types only.

A host starts processes that run `transport.mesh.serve.serve` on one end of a stream socket and
hands over the other end. It knows nothing of actors; the mesh knows nothing of how they started.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import concurrent.futures
    import socket
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Start:
    """One process to start."""

    rank: int
    name: str = "process"  # for logs and process lists
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a process ended, as far as its host can tell. `logs`: its last lines of output."""

    code: int | None = None  # what it gave to exit()
    signal: int | None = None  # what killed it
    text: str = ""  # where neither is known: the machine is gone, say
    logs: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by {_signal_name(self.signal)}"
        if self.code is not None:
            return f"ended with exit code {self.code}"
        return self.text or "ended, and its host cannot tell why"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process finds itself; what it knows before its owner has said anything."""

    host: str = "local"


class Process(Protocol):
    """A process that was started. Every method may be called from any thread."""

    @property
    def rank(self) -> int: ...

    @property
    def host(self) -> str:
        """The name of the machine, for people."""
        ...

    @property
    def pid(self) -> int:
        """On its own machine."""
        ...

    @property
    def socket(self) -> socket.socket:
        """A connected stream socket to the process's link; whoever takes it closes it."""
        ...

    @property
    def ended(self) -> concurrent.futures.Future[Cause]:
        """Done as soon as the process has ended; never fails."""
        ...

    def kill(self) -> None:
        """Ends it at once (SIGKILL). Idempotent; returns before it has ended."""

    def stop(self, timeout: float) -> None:
        """Waits up to `timeout` seconds until it has ended by itself, then kills it. Idempotent.

        Its socket is closed first, which is what makes it end.
        """


class Host(Protocol):
    """A way to start processes."""

    @property
    def name(self) -> str: ...

    def start(self, ranks: Sequence[Start]) -> Sequence[Process]:
        """All of them or none, in this order. Raises Unavailable."""
        ...

    def close(self) -> None:
        """Gives back what it holds beside the processes, once these have ended. Idempotent."""
