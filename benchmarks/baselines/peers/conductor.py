"""Starts drivers, asks them and ends them. Every question has a deadline; nothing here hangs.

A driver's processes have a process group of their own, by which all that they start ends with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

DRIVERS = Path(__file__).resolve().parent / "drivers"
PATIENCE = 120.0  # seconds for one question
_END = 10.0  # seconds from "close" to the end of the process
_LOG_TAIL = 300  # characters of what a driver said before it ended


class DriverFailed(Exception):
    """A driver said that it failed, ended, or did not answer in time; the message says which."""


@dataclass(frozen=True)
class Command:
    """How one side is started: the driver's file by the interpreter of its environment."""

    python: str
    file: Path


class Process:
    """One side of a driver."""

    def __init__(self, command: Command, role: str, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.role, self._log, self._held = role, log, b""
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [command.python, str(command.file), role],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, question: Mapping[str, Any]) -> None:
        pipe = _open(self._process.stdin)
        try:
            pipe.write(json.dumps(question).encode() + b"\n")
            pipe.flush()
        except OSError:
            raise self._ended() from None

    def answer(self, patience: float | None = None) -> dict[str, Any]:
        """Raises DriverFailed, also for an answer that is no JSON object."""
        line = self._line(time.monotonic() + (PATIENCE if patience is None else patience))
        try:
            answer = json.loads(line)
        except ValueError:
            raise DriverFailed(f"the {self.role} answered {line[:80]!r}") from None
        if not isinstance(answer, dict):
            raise DriverFailed(f"the {self.role} answered {line[:80]!r}")
        if "error" in answer:
            raise DriverFailed(f"the {self.role}: {answer['error']}")
        return answer

    def ask(self, ask: str, **arguments: Any) -> dict[str, Any]:
        self.begin({"ask": ask, **arguments})
        return self.answer()

    def _line(self, end: float) -> bytes:
        descriptor = _open(self._process.stdout).fileno()
        while b"\n" not in self._held:
            left = max(0.0, end - time.monotonic())
            if not select.select([descriptor], [], [], left)[0]:
                raise DriverFailed(f"the {self.role} did not answer in time")
            more = os.read(descriptor, 1 << 16)
            if not more:
                raise self._ended()
            self._held += more
        line, _, self._held = self._held.partition(b"\n")
        return line

    def _ended(self) -> DriverFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END)
        said = self._log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "no word")
        return DriverFailed(f"the {self.role} ended ({self._process.returncode}): {last}")

    def pause(self) -> None:
        """For a library that spins while it has nothing to do: the others need the cores."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def end(self, *, kill: bool) -> None:
        """Asks it to close, or kills it and what it started; returns when it is gone."""
        self.go_on()
        if not kill:
            with contextlib.suppress(DriverFailed):
                self.begin({"ask": "close"})
                self.answer(_END)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                _open(pipe).close()


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


class Pair:
    """Both sides of a driver, joined; or the one process of a runtime that starts its own."""

    def __init__(self, command: Command, log: Path, *, alone: bool, spins: bool) -> None:
        roles = ("initiator",) if alone else ("initiator", "target")
        self._spins = spins
        self.processes: list[Process] = []
        try:
            for role in roles:
                place = log.with_name(f"{log.name}.{role}.log")
                self.processes.append(Process(command, role, place))
        except OSError as error:
            self.kill()
            raise DriverFailed(f"cannot start {command.python}: {error.strerror}") from error

    @property
    def initiator(self) -> Process:
        return self.processes[0]

    @property
    def target(self) -> Process:
        return self.processes[-1]

    def open(self, **options: Any) -> str:
        """Opens and joins both sides; the driver's version."""
        opened = self.both("open", **options)
        facts = [answer.get("facts", {}) for answer in opened]
        for process, theirs in zip(self.processes, reversed(facts)):
            process.begin({"ask": "connect", "facts": theirs})
        for process in self.processes:
            process.answer()
        return str(opened[0].get("version", ""))

    def both(self, ask: str, **arguments: Any) -> list[dict[str, Any]]:
        """Asks both before either answers: two-sided libraries need it."""
        for process in self.processes:
            process.begin({"ask": ask, **arguments})
        return [process.answer() for process in self.processes]

    @contextlib.contextmanager
    def turn(self) -> Any:
        """Within, the processes run; outside, those that would spin are stopped."""
        self._each(Process.go_on)
        try:
            yield
        finally:
            self._each(Process.pause)

    def _each(self, what: Any) -> None:
        if self._spins:
            for process in self.processes:
                what(process)

    def close(self) -> None:
        """Asks both to close, the initiator first, and sees that they do."""
        self._end(kill=False)

    def kill(self) -> None:
        """After a failure: one that did not answer in time would not answer now."""
        self._end(kill=True)

    def _end(self, *, kill: bool) -> None:
        for process in self.processes:
            process.go_on()
        for process in self.processes:
            process.end(kill=kill)
        self.processes = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
