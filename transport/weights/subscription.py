"""A reader of a publication: joins its sources once, syncs any number of times.

May import engine, sharding, ffi, types and errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from transport.engine.engine import check_engine
from transport.errors import (
    DeadlineExceeded,
    InvalidUse,
    LayoutError,
    PeerLost,
    StaleRegion,
    TransportError,
    Unavailable,
    VersionGone,
    VersionMoved,
)
from transport.ffi.handle import Handle
from transport.sharding.run import moved
from transport.weights.card import check_name
from transport.weights.clock import Clock
from transport.weights.group import Group, NotYetError
from transport.weights.local import check_shapes
from transport.weights.pull import Pull
from transport.weights.word import check_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from transport.engine.engine import Engine
    from transport.sharding.run import Report
    from transport.sharding.state import StateLayout

    # From the group's layout the one that is wanted, and the tensors of this rank in it.
    Receive = Callable[[StateLayout], tuple[StateLayout, Mapping[str, Any]]]

Version: TypeAlias = "int | Literal['latest', 'next']"

_PAUSES = (1e-3, 0.2)  # seconds between attempts: the first, and what they grow to
_LATER = (PeerLost, StaleRegion)  # look for the sources again


class Fetched(NamedTuple):
    """What a fetch did; as text, a line for a log."""

    version: int
    nbytes: int
    seconds: float
    attempts: int  # 1: at once; more where versions moved or sources went away
    carried: Mapping[str, int]  # bytes by provider and path, as in Report

    def __str__(self) -> str:
        again = f", at attempt {self.attempts}" if self.attempts > 1 else ""
        return f"version {self.version}: {moved(self.nbytes, self.seconds, self.carried)}{again}"


class Subscription(Handle):
    """Brings versions of a published state into local tensors.

    Made by `subscribe`; a context manager. The first fetch finds the sources and plans; later ones
    check the version, read, and check it again. Not for several threads at once.
    """

    _loss = "; its publishers keep a seat for it until this engine closes"

    def __init__(
        self,
        engine: Engine,
        name: str,
        sources: Iterable[str],
        receive: Receive,
        rank: int,
        *,
        without: Iterable[int] = (),
        ahead: bool = True,
    ) -> None:
        check_engine(engine)
        self._engine = engine
        self._name = check_name(name)
        self._receive = receive
        self._rank = rank
        self._without = frozenset(without)
        self._ahead = ahead  # whether there will be a second fetch
        self._group = Group(engine, name, _addresses(sources))
        self._pull: Pull | None = None
        self._version: int | None = None
        self._last = -1  # fetched; what "next" goes on from
        self._open()

    # --------------------------------------------------------------------------------------- facts
    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> int | None:
        """What the tensors hold since the last fetch; None before it, and after one that failed."""
        return self._version

    # ----------------------------------------------------------------------------------- fetching
    def fetch(
        self,
        version: Version = "latest",
        *,
        deadline: float | None = None,
        progress: Any = None,
    ) -> Fetched:
        """Brings one version in: a number, the "latest" that all sources have, or the "next", which
        is later than what this subscription fetched last.

        Waits for a version that is not there yet, for sources that are not up, and begins again
        when a version is overwritten under it or a source is lost, all within `deadline` seconds
        (default: the setting). Raises VersionGone for a version that is no longer kept, and at the
        deadline what hindered it: VersionMoved, PeerLost, Unavailable or DeadlineExceeded; the
        tensors then hold no particular version. `progress(bytes_done, bytes_total)` is called now
        and then.
        """
        self._check()
        clock = Clock(deadline, self._engine._core.settings.deadline)
        wanted, newest = self._wanted(version)
        attempts, pause = 0, _PAUSES[0]
        why: TransportError | None = None
        while True:
            attempts += 1
            try:
                found, report = self._attempt(wanted, newest, clock, progress)
                return Fetched(found, report.bytes, clock.spent, attempts, report.carried)
            except (VersionGone, DeadlineExceeded):
                raise
            except VersionMoved as error:
                why = error.with_traceback(None)  # it would hold this frame, and that it
            except NotYetError as error:
                # Having had no time to ask tells less than what was before.
                why = why if why and self._group.late else error.why
                self._drop_pull()
            except _LATER as error:
                why = error.with_traceback(None)
                self._drop_pull()
            clock.pause(pause)
            if clock.passed:
                try:
                    raise why
                finally:
                    del why
            pause = min(2 * pause, _PAUSES[1])

    def close(self) -> None:
        """Gives the seats at the publishers back. Idempotent."""
        if self._closed or self._foreign():
            return
        self._closed = True
        if not self._engine.closed:
            self._drop_pull()
            self._group.leave()

    # -------------------------------------------------------------------------------------- inside
    def _attempt(
        self,
        wanted: Callable[[int], bool],
        newest: int | None,
        clock: Clock,
        progress: Any,
    ) -> tuple[int, Report]:
        if self._pull is not None:
            self._group.seek()
            if self._group.returned:
                self._drop_pull()
        pull = self._pull
        if pull is None:
            pull = self._pull = self._join(clock)
        elif newest is not None and progress is None:
            self._version = None
            if (report := pull.guess(newest, clock)) is not None:
                self._version = self._last = newest
                return newest, report
        choice = pull.choose(wanted, newest, clock)
        try:
            pull.prepare(choice, clock, ahead=self._ahead)
        except LayoutError as error:
            if not self._group.missing:
                raise
            why = "; ".join(self._group.errors) or "no address given is that rank's"
            raise NotYetError(Unavailable(f"{error} ({why})")) from None
        self._version = None
        report = pull.read(choice, clock, progress)
        self._version = self._last = choice.version
        if report.lost:
            self._drop_pull()  # the next fetch looks for them
        return choice.version, report

    def _join(self, clock: Clock) -> Pull:
        self._group.join(clock)
        group, rank = self._group, self._rank
        target, tensors = self._receive(group.layout)
        shapes = target.local_shapes(rank)
        check_shapes(tensors, shapes, f"rank {rank}")
        local = {name: tensors[name] for name in shapes}
        without = group.missing | self._without
        return Pull(self._engine, group, target, rank, local, without)

    def _wanted(self, version: Any) -> tuple[Callable[[int], bool], int | None]:
        """Which versions will do, and the last one that does if there is one."""
        if version == "latest":
            return lambda _: True, None
        if version == "next":
            last = self._last
            return lambda found: found > last, None
        if isinstance(version, str):
            raise InvalidUse(f'a version is a number, "latest" or "next", not {version!r:.80}')
        number = check_version(version)
        return lambda found: found == number, number

    def _drop_pull(self) -> None:
        pull, self._pull = self._pull, None
        if pull is not None:
            pull.close()

    def _ended(self) -> bool:
        return self._engine.closed

    def _describe(self) -> str:
        held = "nothing yet" if self._version is None else f"version {self._version}"
        return f"{self._name!r}: {held}"


def _addresses(sources: Any) -> list[str]:
    """As they came from the user. Raises InvalidUse."""
    try:
        found = [sources] if isinstance(sources, str) else list(sources)
    except TypeError:
        found = []
    if not found or not all(isinstance(it, str) for it in found):
        raise InvalidUse(
            "sources are the addresses of at least one engine that publishes, as text, not"
            f" {sources!r:.80}"
        )
    return found
