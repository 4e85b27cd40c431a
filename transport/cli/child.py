"""A second process that this command starts, asks things and ends. Imports errors and types only.

The two talk over a pipe: (what, arguments) there, ("ok", answer) or ("error", text) back. The child
ends when the pipe does, so it never outlives a parent that was killed.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from transport.errors import TransportError
from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    Handlers = Mapping[str, Callable[..., Any]]

_END_TIMEOUT = 10.0  # seconds; an engine's close waits at most half of this


class ChildFailed(TransportError):
    """The second process raised, or ended without answering; the message has its words."""


class Child(Closing):
    """Runs `target(pipe, *arguments)` in a fresh interpreter (spawn: no forked threads)."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        _start(self._process)
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def ask(self, what: str, *arguments: Any) -> Any:
        """The answer; raises ChildFailed."""
        self.tell(what, *arguments)
        return self.answer()

    def tell(self, what: str, *arguments: Any) -> None:
        """Asks, and does not wait: `answer` does. For several that shall work at once."""
        try:
            self._pipe.send((what, arguments))
        except OSError:
            raise self._ended() from None

    def answer(self) -> Any:
        """The next answer; raises ChildFailed."""
        try:
            state, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if state != "ok":
            raise ChildFailed(f"in the second process: {answer}")
        return answer

    def kill(self) -> None:
        """Ends it at once, as kill -9 does."""
        self._process.kill()
        self._process.join()

    def _ended(self) -> ChildFailed:
        self._process.join(_END_TIMEOUT)
        return ChildFailed(f"the second process ended (exit status {self._process.exitcode})")

    def close(self) -> None:
        self._pipe.close()
        self._process.join(_END_TIMEOUT)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def __exit__(self, *error: object) -> None:
        # After Ctrl-C nobody waits for the end of what it is doing.
        if isinstance(error[1], KeyboardInterrupt):
            self._process.kill()
        self.close()


def _start(process: BaseProcess) -> None:
    """Ctrl-C while an interpreter starts makes it print a trace, before code of ours could help;
    so it is blocked there, for good: the parent decides what Ctrl-C means.
    """
    resource_tracker.ensure_running()  # or it would unblock what is blocked here
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(pipe: Connection, handlers: Handlers) -> None:
    """The child's loop: answers until the parent closes the pipe.

    Ctrl-C reaches the whole foreground group; the parent decides what it means.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            what, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = ("ok", handlers[what](*arguments))
        except TransportError as error:
            answer = ("error", f"{type(error).__name__}: {error}")
        except Exception:  # anything else is a bug: its trace is what the parent should show
            answer = ("error", traceback.format_exc())
        try:
            pipe.send(answer)
        except OSError:
            return  # nobody waits for it any more
