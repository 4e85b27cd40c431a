"""One choice of slots, read again and again: sit down, look, read, look, leave.

May import engine, sharding and errors. The five steps are one call into C as long as all goes well;
where it does not, what follows is done step by step, and says why.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from transport.engine.batch import Read, Write
from transport.engine.sequence import Step, Steps
from transport.errors import DeadlineExceeded, TransportError, VersionMoved
from transport.types import Closing
from transport.weights.seats import said
from transport.weights.word import State, decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.engine.engine import Engine
    from transport.engine.prepared import Prepared
    from transport.engine.transfer import Transfer
    from transport.sharding.execute import Execution
    from transport.sharding.run import Progress, Report, Run
    from transport.weights.clock import Clock
    from transport.weights.source import Source

_LEAVING = 5.0  # seconds for what must be done when the time is over
_SIT, _LOOK, _READ, _CHECK, _LEAVE = range(5)


class Sync(Closing):
    """An execution, and the words and seats of its sources, of which `slots` are read."""

    def __init__(
        self,
        engine: Engine,
        sources: Sequence[Source],
        slots: Sequence[int],
        execution: Execution,
    ) -> None:
        self.execution = execution
        self._engine = engine
        self._sources = sources
        self._words = [it.words[slot : slot + 1] for it, slot in zip(sources, slots)]
        self._found, self._expected = (np.zeros(len(sources), np.uint64) for _ in range(2))
        self._seat, self._nothing = (np.zeros(1, np.uint64) for _ in range(2))
        seats = [it.seat for it in sources]
        self._sit = engine.prepare([Write(self._seat, it) for it in seats])
        self._leave = engine.prepare([Write(self._nothing, it) for it in seats])
        rows = enumerate(self._words)
        self._look = engine.prepare([Read(it, self._found[i : i + 1]) for i, it in rows])
        self._steps: Steps | None = None
        self._make_steps()

    def read(self, version: int, clock: Clock, progress: Progress | None) -> Report:
        """The bytes of exactly this version. Raises VersionMoved, or what became of a source.

        A source that is lost on the way is done without, where others have all that it has.
        """
        run, done = self._begin(version, clock), 0
        try:
            if self._steps is not None and progress is None:
                done = run.together(self._steps, _READ)
            if done <= _SIT:
                run_again(self._sit, clock, "telling the publishers what is read")
            if done <= _LOOK:
                # Who closes the version waits for us, unless he had looked before we sat down.
                self._check(version, clock, ())
            report = run.wait(progress)
            if done <= _CHECK:
                self._check(version, clock, report.lost)
        finally:
            run.abandon()
            if done <= _LEAVE:
                self._stand_up()
        return report

    def guess(self, version: int, clock: Clock) -> Report | None:
        """The same without a choice; None where the sources do not have this version now."""
        run, done = self._begin(version, clock), 0
        if self._steps is None:
            run.abandon()
            return None
        try:
            done = run.together(self._steps, _READ)
            return run.wait() if done > _LEAVE else None
        finally:
            run.abandon()
            if done <= _LEAVE:
                self._stand_up()

    def close(self) -> None:
        for it in (self._sit, self._look, self._leave, self.execution):
            it.close()

    # -------------------------------------------------------------------------------------- inside
    def _begin(self, version: int, clock: Clock) -> Run:
        run = self.execution.begin(clock.left(), wary=True)
        if self._steps is None or not self._steps.done:
            self._make_steps()
        self._seat[0], self._expected[:] = said(version), encode(version, State.STABLE)
        return run

    def _make_steps(self) -> None:
        transfers = self.execution.transfers
        if transfers is None:
            self._steps = None
            return
        look = Step([self._look], self._found, self._expected)
        steps = [Step([self._sit]), look, Step(transfers), look, Step([self._leave])]
        self._steps = Steps(self._engine._core, steps)

    def _check(self, version: int, clock: Clock, lost: Sequence[int]) -> None:
        """Raises VersionMoved unless all sources but those that were lost have it still."""
        if lost:
            self._look_at_the_others(clock, lost)
        else:
            run_again(self._look, clock, "reading the versions")
        for source, word in zip(self._sources, self._found.tolist()):
            held, state = decode(word)
            if source.rank not in lost and (held != version or state is State.WRITING):
                raise VersionMoved(
                    f"rank {source.rank} at {source.address} left version {version} while it was"
                    " being read",
                    version=version,
                )

    def _look_at_the_others(self, clock: Clock, lost: Sequence[int]) -> None:
        here = [self._found[i : i + 1] for i in range(len(self._sources))]
        rows = zip(self._sources, self._words, here)
        reads = [Read(word, into) for source, word, into in rows if source.rank not in lost]
        self._engine.submit(reads, deadline=clock.left()).wait()

    def _stand_up(self) -> None:
        """Also when the time is over: a seat that stays taken holds a publisher up."""
        begun: list[Transfer] = []
        for source in self._sources:
            with contextlib.suppress(TransportError):  # it would hide why this ends
                begun.append(self._engine.write(self._nothing, source.seat, deadline=_LEAVING))
        for transfer in begun:
            with contextlib.suppress(TransportError):
                transfer.wait()


def run_again(prepared: Prepared, clock: Clock, doing: str) -> None:
    """Also where its last run was left under way."""
    if not prepared.quiet:
        prepared.cancel()
        prepared.wait_quiet(_LEAVING)
    try:
        prepared.run(timeout=clock.left())
    except TimeoutError:
        prepared.cancel()
        prepared.wait_quiet(_LEAVING)  # so that it can be run again
        raise DeadlineExceeded(f"{doing} took more than {clock.limit:g} s") from None
