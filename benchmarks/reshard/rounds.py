"""Starts the ranks of a way, and lets the ways take turns: fill, clear, move, compare digests."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.baselines.peers.conductor import Command, DriverFailed, Process
from benchmarks.reshard.case import SIDES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.reshard.case import Case
    from benchmarks.reshard.ways import Way

DRIVERS = Path(__file__).resolve().parent / "drivers"
MEMORY = Path("/dev/shm")
_WARM = 0.5  # seconds
_AHEAD = 20_000_000  # ns: by then all ranks know that they are to begin


@dataclass
class Found:
    """A way at a case. Seconds of each sync after the first, which also connects and plans."""

    way: Way
    reason: str = ""
    version: str = ""
    first: float | None = None
    seconds: list[float] = field(default_factory=list)
    right: bool = True

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds and self.right else None


class Group:
    """The processes of one way: a process for each rank of both sides, or one for all."""

    def __init__(self, way: Way, case: Case, interpreter: str | None, more: dict[str, str]) -> None:
        self.way, self.case = way, case
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY)) if way.files else None
        counts = {side: len(case.states[side].ranks) for side in SIDES}
        self.roles = (
            [("both", 0)] if way.alone else [(s, r) for s in SIDES for r in range(counts[s])]
        )
        self.processes: list[Process] = []
        self.version = ""
        command = Command(interpreter or sys.executable, DRIVERS / way.driver)
        logs = Path(tempfile.gettempdir()) / "reshard-logs"
        try:
            for side, rank in self.roles:
                log = logs / f"{way.driver}.{side}.{rank}.log"
                self.processes.append(Process(command, f"{side}:{rank}", log))
            self._open(more)
        except BaseException:
            self.end(kill=True)
            raise

    def _open(self, more: dict[str, str]) -> None:
        options = {**self.way.options, **more, "folder": str(self.folder)}
        opened = self.ask("open", spec=self.case.spec, options=options)
        self.version = opened[0]["version"]
        facts: dict[str, list[Any]] = {side: [] for side in SIDES}
        for (side, _), answer in zip(self.roles, opened):
            facts.setdefault(side, []).append(answer["facts"])
        self.ask("connect", facts=facts)

    def ask(self, ask: str, of: str = "both", **arguments: Any) -> list[dict[str, Any]]:
        """Asks all of a side before any answers."""
        chosen = [
            process
            for (side, _), process in zip(self.roles, self.processes)
            if "both" in (of, side) or of == side
        ]
        for process in chosen:
            process.begin({"ask": ask, **arguments})
        return [process.answer() for process in chosen]

    def sync(self, seed: int) -> float:
        """Seconds of its phases, each from the first rank's begin to the last one's end."""
        total = 0
        for phase, of in self.way.phases:
            spans = self.ask(phase, of, seed=seed, at=time.monotonic_ns() + _AHEAD)
            total += max(it["end"] for it in spans) - min(it["begin"] for it in spans)
        return total / 1e9

    def digests(self) -> tuple[str, ...]:
        found = [answer["digest"] for answer in self.ask("digest", "target")]
        return tuple(found[0] if self.way.alone else found)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Within, its processes run; outside, those that would spin are stopped."""
        for process in self.processes if self.way.spins else ():
            process.go_on()
        try:
            yield
        finally:
            for process in self.processes if self.way.spins else ():
                process.pause()

    def end(self, *, kill: bool) -> None:
        for process in self.processes:
            process.go_on()
        for process in self.processes:
            process.end(kill=kill)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def turn(group: Group, found: Found, seed: int) -> None:
    """One sync of one way, with other contents than before."""
    with group.turn():
        group.ask("fill", "source", seed=seed)
        group.ask("clear", "target")
        seconds = group.sync(seed)
        found.right = found.right and group.digests() == _expected(group, seed)
    if found.first is None:
        found.first = seconds
    else:
        found.seconds.append(seconds)


def _expected(group: Group, seed: int) -> tuple[str, ...]:
    if group.way.kind == "limit":  # one value everywhere: see drive_bare.py
        return (str(seed % 251 + 1),) * len(group.case.states["target"].ranks)
    return group.case.digests(seed)


def warm(group: Group, seed: int) -> int:
    """Syncs that are not counted, for half a second: a way may learn. Returns the next seed."""
    end = time.monotonic() + _WARM
    with group.turn():
        while time.monotonic() < end:
            group.ask("fill", "source", seed=seed)
            group.sync(seed)
            seed += 1
    return seed


def failed(found: Found, error: Exception) -> None:
    found.reason, found.seconds = str(error), []


FAILURES = (DriverFailed, OSError)
