"""A rank's part of a named, versioned state dict, for peers to fetch.

May import engine, sharding, memory, ffi, types and errors.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from transport.engine.engine import check_engine
from transport.errors import InvalidUse
from transport.ffi.handle import Handle
from transport.types import check_timeout
from transport.weights import card
from transport.weights.announcement import Announcement
from transport.weights.live import Live
from transport.weights.local import (
    check_named,
    check_shapes,
    described,
    layout_for,
    left_out,
    some,
    tensors_of,
)
from transport.weights.registry import registry_of
from transport.weights.snapshots import Snapshots, check_keep
from transport.weights.word import State, check_version

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from transport.engine.engine import Engine
    from transport.memory.remote import RemoteRegion
    from transport.sharding.state import StateLayout

Mode: TypeAlias = Literal["live", "snapshot"]

PATIENCE = 10.0  # seconds


class _Memory(Protocol):
    """Where the versions lie."""

    slots: int
    handles: list[dict[str, RemoteRegion]]

    @property
    def nbytes(self) -> int: ...

    def check(self) -> None: ...

    def take(self, slot: int) -> None: ...

    def close(self) -> None: ...


class Publication(Handle):
    """What `publish` returns: keep it open for as long as others shall find the state.

    Not for several threads at once. A reader gets exactly one version, whatever happens here.
    """

    _instead = "peers fetch it by its name and the engine's address"
    _loss = "; its readers lose it: keep the publication while peers fetch"

    def __init__(
        self,
        engine: Engine,
        name: str,
        rank: int,
        mode: Mode,
        memory: _Memory,
        layout: StateLayout,
        patience: float,
        left_out: Sequence[str],
    ) -> None:
        self._engine = engine
        self._name = name
        self._rank = rank
        self._mode: Mode = mode
        self._memory = memory
        self._layout = layout
        self._patience = patience
        self._left_out = left_out
        self._versions = [-1] * memory.slots
        self._writing: int | None = None  # the slot that holds no version now
        self._lock = threading.Lock()
        self._announcement = Announcement(engine, layout, memory.handles)
        try:
            self._registry = registry_of(engine)
            self._registry.add(name, rank, self._announcement)
        except BaseException:
            self._announcement.close()
            raise
        self._open()

    # --------------------------------------------------------------------------------------- facts
    @property
    def name(self) -> str:
        return self._name

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def layout(self) -> StateLayout:
        """How the whole group holds the state."""
        return self._layout

    @property
    def version(self) -> int | None:
        """The latest that readers can get; None before the first, or while `live` memory is being
        written."""
        return max(self.versions, default=None)

    @property
    def versions(self) -> tuple[int, ...]:
        """All that readers can get, ascending."""
        held = [v for slot, v in enumerate(self._versions) if v >= 0 and slot != self._writing]
        return tuple(sorted(held))

    @property
    def readers(self) -> int:
        """The subscriptions that are open and whose process lives."""
        return len(self._announcement.seats)

    @property
    def nbytes(self) -> int:
        """What publishing takes beside the tensors themselves: the copies of `snapshot`."""
        return self._memory.nbytes

    # ------------------------------------------------------------------------------------ versions
    def update(self, version: int) -> None:
        """Publishes the tensors as they are now, by copying them (`snapshot` only).

        Overwrites the oldest version; one that a living reader is at is left alone for at most
        `patience` seconds (the reader then begins again, with another version). Raises InvalidUse
        for a version that is not greater than the last one.
        """
        if self._mode == "live":
            raise InvalidUse(
                'mode="live" has no copies: change the tensors in `with publication.writing(v):`'
            )
        version = self._newer(version)
        with self._exclusively():
            self._begin(self._victim(), self._patience)
            self._take_and_commit(version)

    @contextlib.contextmanager
    def writing(
        self, version: int, *, patience: float | None = None
    ) -> Generator[None, None, None]:
        """`with publication.writing(version): optimizer.step()` makes the tensors that version.

        In `live` mode readers that have begun are waited for, at most `patience` seconds (default:
        the publication's); until the block has ended nobody reads. If the block raises, no version
        is there until one that does not; nor where a tensor has been given other memory in it
        (`.data =`, `resize_`), which is InvalidUse. In `snapshot` mode readers go on with what they
        have, and the block is followed by `update`.
        """
        version = self._newer(version)
        if self._mode == "snapshot":
            yield
            self.update(version)
            return
        self.begin(patience=patience)
        yield
        self.commit(version)

    def begin(self, *, patience: float | None = None) -> None:
        """The first half of `writing`, in `live` mode: from now on the tensors may change."""
        limit = self._limit(patience)
        if self._mode != "live":
            raise InvalidUse('begin() and commit() are for mode="live"; use update()')
        with self._exclusively():
            if self._writing is None:  # else a block that raised has left it so
                self._begin(0, limit)

    def commit(self, version: int) -> None:
        """The second half: the tensors are whole, and this version. Raises InvalidUse, and leaves
        readers without a version, where a tensor has other memory than was published."""
        version = self._newer(version)
        with self._exclusively():
            if self._writing is None or self._mode != "live":
                raise InvalidUse("commit() comes after begin()")
            self._memory.check()
            self._commit(version)

    def wait_for_readers(self, timeout: float | None = None) -> bool:
        """Waits until no living reader is at the latest version, at most `timeout` seconds
        (default: `patience`). False: one still is. Others may begin at any time; `writing` keeps
        them out."""
        limit = self._limit(timeout)
        latest = self.version
        return latest is None or self._announcement.seats.wait(latest, limit)

    def close(self) -> None:
        """Nobody finds it any more; its memory is given back. Idempotent.

        Readers that are at it get StaleRegion, and look for another source.
        """
        if self._closed or self._foreign():
            return
        self._closed = True
        self._registry.remove(self._name, self._rank)
        self._announcement.close()
        self._memory.close()

    # -------------------------------------------------------------------------------------- inside
    def _first(self, version: Any) -> None:
        """The tensors as they are."""
        try:
            if self._mode == "live":
                self.begin()
                self.commit(version)
            else:
                self.update(version)
        except BaseException:
            self.close()
            raise

    def _newer(self, version: Any) -> int:
        self._check()
        wanted, last = check_version(version), max(self._versions)
        if wanted <= last:
            raise InvalidUse(f"version {wanted} is not greater than the last one, {last}")
        return wanted

    def _limit(self, seconds: float | None) -> float:
        self._check()
        limit = check_timeout(seconds)
        return self._patience if limit is None else limit

    @contextlib.contextmanager
    def _exclusively(self) -> Generator[None, None, None]:
        if not self._lock.acquire(blocking=False):
            raise InvalidUse("another thread is publishing a version of this")
        try:
            yield
        finally:
            self._lock.release()

    def _victim(self) -> int:
        """The slot to overwrite: the oldest one that no reader is at, but none of those that stay.

        One more is overwritten than must be where that spares a reader: `keep` counts the new one.
        """
        if self._writing is not None:  # the last update did not end
            return self._writing
        oldest_first = sorted(range(len(self._versions)), key=self._versions.__getitem__)
        if self._versions[oldest_first[0]] < 0:
            return oldest_first[0]
        spare = oldest_first[: len(oldest_first) - max(1, len(oldest_first) - 2)]
        seats = self._announcement.seats
        return next((s for s in spare if not seats.reading(self._versions[s])), spare[0])

    def _begin(self, slot: int, patience: float) -> None:
        version, announcement = self._versions[slot], self._announcement
        if slot != self._writing and version >= 0:
            announcement.say(slot, version, State.CLOSING)
            announcement.seats.wait(version, patience)
        announcement.say(slot, version, State.WRITING)
        self._writing = slot

    def _take_and_commit(self, version: int) -> None:
        slot = self._writing
        assert slot is not None
        self._memory.take(slot)
        self._commit(version)

    def _commit(self, version: int) -> None:
        slot = self._writing
        assert slot is not None
        self._announcement.say(slot, version, State.STABLE)
        self._versions[slot] = version
        self._writing = None

    def _ended(self) -> bool:
        return self._engine.closed

    def _hand_over(self) -> None:
        """Its regions are closed by their own finalizers."""
        self._registry.remove(self._name, self._rank)

    def _describe(self) -> str:
        kept = ", ".join(map(str, self.versions)) or "no version"
        count = len(self._layout.local_shapes(self._rank))
        what = f"{count} tensor{'s' * (count != 1)}"
        if self._left_out:
            what += f"; left out: {some(self._left_out)}"
        return f"{self._name!r} rank {self._rank}, {self._mode} ({what}): {kept}"


def publish(
    engine: Engine,
    name: str,
    state: Any,
    version: int | None = None,
    *,
    layout: StateLayout | None = None,
    rank: int | None = None,
    mode: Mode = "snapshot",
    keep: int = 1,
    patience: float = PATIENCE,
    partial: bool = False,
) -> Publication:
    """Lets peers fetch a state dict (or a module's) by name, version after version.

    `state` has this rank's local tensors and arrays, those of nested dicts by names joined with
    dots; what else is in it, numbers and lists too, is passed over, and named by `repr()`. `layout`
    says how the whole group holds the state, `rank` is this process's number in the group. By
    default DTensors tell both; where there are none, rank 0 has all of it. With `version` the
    tensors are published as they are; otherwise nothing is there before `update`.

    `mode="snapshot"` copies the tensors at each `update`: `keep` versions and one more are in
    memory that peers on this host can map. `mode="live"` copies nothing: readers read the tensors
    themselves, which may change only in `with publication.writing(version):`. `patience` is for how
    many seconds a new version waits for living readers of the memory that it overwrites.

    A tensor that the layout names nowhere would be missing at every reader, so it is refused,
    unless `partial` says that only what is named is to be published.

    Raises LayoutError for tensors that are not as the layout says, or not in it, InvalidUse for
    memory that cannot be published and for a name and rank that this engine publishes already,
    NativeError where memory is short.
    """
    check_engine(engine)
    card.check_name(name)
    tensors = tensors_of(state)
    told, rank = described(state, rank)
    rank = card.check_rank(rank)
    layout = layout_for(layout, told, tensors, rank)
    if not partial:
        check_named(tensors, layout)
    views = check_shapes(tensors, layout.local_shapes(rank), f"rank {rank}")
    wait = check_timeout(patience)
    registry_of(engine).check_free(name, rank)
    memory: _Memory
    if mode == "live":
        memory = Live(engine, tensors, views)
    elif mode == "snapshot":
        memory = Snapshots(engine, tensors, views, check_keep(keep, card.MAX_SLOTS))
    else:
        raise InvalidUse(f'mode is "live" or "snapshot", not {mode!r:.80}')
    try:
        patience = PATIENCE if wait is None else wait
        rest = left_out(state, views.keys())
        made = Publication(engine, name, rank, mode, memory, layout, patience, rest)
    except BaseException:
        memory.close()
        raise
    if version is not None:
        made._first(version)
    return made
