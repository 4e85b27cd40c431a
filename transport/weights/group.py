"""All parts of a publication that a reader found, and which ranks it did not find.

May import engine, sharding and errors.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

from transport.control.records import State
from transport.errors import (
    DeadlineExceeded,
    InvalidUse,
    LayoutError,
    PeerError,
    TransportError,
    Unavailable,
)
from transport.weights import card
from transport.weights.clock import Clock
from transport.weights.source import ask_all, leave, read_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.control.records import PeerRecord
    from transport.engine.engine import Engine
    from transport.sharding.state import StateLayout
    from transport.weights.source import Answer, Source


SEEK_EVERY = 5.0  # seconds between looks for ranks that are missing
_SEEK_FOR = 5.0  # seconds that one may take


class NotYetError(Exception):
    """The group is not whole: it may be a moment later. `why` is what to raise when it never is."""

    def __init__(self, why: TransportError) -> None:
        super().__init__(str(why))
        self.why = why


class Group:
    """The sources of one name by rank, one for each; and their layout."""

    def __init__(self, engine: Engine, name: str, addresses: Sequence[str]) -> None:
        self._engine = engine
        self._question = card.Question(card.PROTOCOL, name, os.urandom(card.READER_BYTES))
        self._addresses = addresses
        self._layout: StateLayout | None = None
        self._silent: list[str] = []  # addresses that gave nothing
        self.errors: list[str] = []  # why addresses gave nothing
        self._seeking: threading.Thread | None = None
        self._sought = time.monotonic()
        self.returned = False  # whether an address that gave nothing does so since
        self.late = False  # whether for some of them that is only that there was no time
        self.sources: dict[int, Source] = {}
        self._asked: dict[bytes, PeerRecord] = {}  # who may keep a seat, also if nothing came of it
        self.missing: frozenset[int] = frozenset()
        """Ranks that take part in the layout and were not found."""

    @property
    def layout(self) -> StateLayout:
        assert self._layout is not None, "join() comes first"
        return self._layout

    def join(self, clock: Clock) -> None:
        """Asks all addresses (again), and takes a seat with each that answers.

        Raises NotYetError.
        """
        asked = self._asked.items()
        self._asked = {key: it for key, it in asked if it.state is not State.LOST}
        answers = ask_all(self._engine, self._addresses, self._question, clock, self._asked)
        self._sought, self.returned = time.monotonic(), False
        self._silent = [answer.address for answer in answers if not answer.sources]
        found = [source for answer in answers for source in answer.sources]
        self.errors = [_reason(answer) for answer in answers if not answer.sources]
        self.late = any(isinstance(answer.error, DeadlineExceeded) for answer in answers)
        if self.late and clock.passed:
            raise NotYetError(DeadlineExceeded(self.errors[-1]))
        self._check(found, answers)
        self.sources = {source.rank: source for source in found}
        if self._layout is None or self._layout.key != found[0].layout_key:
            self._layout = read_layout(self._engine, found[0], clock)
        self.missing = frozenset(self._layout.ranks) - self.sources.keys()

    def seek(self) -> None:
        """Looks, now and then and in a thread, whether one that was not there has come (back)."""
        busy = self._seeking is not None and self._seeking.is_alive()
        if not self.missing or busy or time.monotonic() < self._sought + SEEK_EVERY:
            return
        self._sought = time.monotonic()
        self._seeking = threading.Thread(target=self._ask_the_silent, daemon=True)
        self._seeking.start()

    def leave(self) -> None:
        asked, self._asked = self._asked, {}
        for record in asked.values():
            leave(self._engine, record, self._question)
        self.sources = {}

    def _ask_the_silent(self) -> None:
        with contextlib.suppress(TransportError):  # the engine is being closed, say
            clock = Clock(_SEEK_FOR, _SEEK_FOR)
            answers = ask_all(self._engine, self._silent, self._question, clock, self._asked)
            self.returned = any(answer.sources for answer in answers)

    def _check(self, found: Sequence[Source], answers: Sequence[Answer]) -> None:
        name = self._question.name
        if not found:
            error = next((answer.error for answer in answers if answer.error), None)
            if isinstance(error, InvalidUse):  # an answer that will be no better next time
                raise error
            if isinstance(error, TransportError) and type(error) is not PeerError:
                raise NotYetError(error)
            where = ", ".join(self._addresses)
            remedy = "check the name, or wait for its publish with a longer deadline"
            raise NotYetError(Unavailable(f"nobody publishes {name!r} at {where}", remedy))
        for source in found:
            if source.layout_key != found[0].layout_key:
                where = f"{found[0].address} and {source.address}"
                raise NotYetError(LayoutError(f"{where} publish {name!r} with different layouts"))
        by_rank: dict[int, Source] = {}
        for source in found:
            other = by_rank.setdefault(source.rank, source)
            if other is not source:
                where = f"{other.address} and {source.address}"
                raise NotYetError(
                    LayoutError(f"both {where} publish rank {source.rank} of {name!r}")
                )


def _reason(answer: Answer) -> str:
    return f"{answer.address}: {answer.error or 'publishes nothing of that name'}"
