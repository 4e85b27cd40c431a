"""Starts, commands, stops and kills processes with an engine in them.

May import the servant's types. The child is spawned, never forked: it gets a fresh interpreter.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

from transport.types import Closing

_PATIENCE = 120.0  # seconds for one answer; more than any rule needs


class PeerProcess(Closing):
    """A servant (transport.testing.servant) in a process of its own.

    `call("make", "weights", 4096)` asks and waits for the answer; `begin` asks, `answer` waits.
    `launcher` is a command that runs another, for a process in another place:
    `PeerProcess("ip", "netns", "exec", "NAME")`.
    """

    def __init__(self, *launcher: str, **environment: str) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            servant = [sys.executable, "-m", "transport.testing.servant", str(theirs.fileno())]
            self.process = subprocess.Popen(
                [*launcher, *servant],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
                stdin=subprocess.DEVNULL,
            )
            self._connection: Connection[Any, Any] = Connection(ours.detach())
        self.owed = 0
        """Answers that nobody has taken yet."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Runs a method of the servant; raises what it raised."""
        self.begin(method, *arguments, **keywords)
        return self.answer()

    def begin(self, method: str, *arguments: Any, **keywords: Any) -> None:
        self._connection.send((method, arguments, keywords))
        self.owed += 1

    def answer(self, timeout: float = _PATIENCE) -> Any:
        if not self._connection.poll(timeout):
            self._signal(signal.SIGUSR1)  # it writes its stacks to its standard error
            raise TimeoutError(f"process {self.pid} did not answer within {timeout:g} s")
        worked, value = self._connection.recv()
        self.owed -= 1
        if not worked:
            raise value
        return value

    @property
    def busy(self) -> bool:
        """Whether it has not answered yet."""
        return not self._connection.poll(0)

    def stop(self) -> None:
        """Freezes it; nobody but the kernel answers for it then."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it at once, as a crash of the machine's OOM killer would."""
        self._signal(signal.SIGKILL)
        self.process.wait(_PATIENCE)

    def close(self) -> int:
        """Lets it end by itself; its exit code."""
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            self.go_on()
        try:
            return self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def _signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)


# A shell's background jobs inherit that Ctrl-C is ignored, and Python keeps to it.
_INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def run_program(code: str, *arguments: str, timeout: float = _PATIENCE) -> tuple[int, str, str]:
    """Runs Python text in a fresh interpreter: exit code, standard output, standard error."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTIBLE + code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
