"""What one engine publishes, by name and rank, and its answers to those who ask.

May import engine, control, types and errors. The answers are given on the control thread.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING

from transport.errors import InvalidUse, TransportError
from transport.weights import card

if TYPE_CHECKING:
    from transport.control.records import PeerRecord
    from transport.engine.core import Core
    from transport.engine.engine import Engine
    from transport.weights.announcement import Announcement


class Registry:
    """The announcements of one engine. Thread-safe."""

    def __init__(self, core: Core) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, dict[int, Announcement]] = {}
        core.plane.handle(card.JOIN, self._join)
        core.plane.handle(card.LEAVE, self._leave)

    def add(self, name: str, rank: int, announcement: Announcement) -> None:
        """Raises InvalidUse where there is one already."""
        with self._lock:
            self._check_free(name, rank)
            self._by_name.setdefault(name, {})[rank] = announcement

    def check_free(self, name: str, rank: int) -> None:
        """As `add`, before anything is made."""
        with self._lock:
            self._check_free(name, rank)

    def _check_free(self, name: str, rank: int) -> None:
        if rank in self._by_name.get(name, {}):
            raise InvalidUse(
                f"rank {rank} of {name!r} is published by this engine already: update that"
                " publication, or close it"
            )

    def remove(self, name: str, rank: int) -> None:
        with self._lock:
            ranks = self._by_name.get(name, {})
            ranks.pop(rank, None)
            if not ranks:
                self._by_name.pop(name, None)

    def join(self, record: PeerRecord, body: bytes) -> bytes:
        """The offer for a question, with a seat in each part."""
        asked = card.question(body)
        with self._lock:
            ranks = dict(self._by_name.get(asked.name, {}))
        parts = [it.part(rank, asked.reader, record) for rank, it in sorted(ranks.items())]
        return card.encode(card.Offer(card.PROTOCOL, parts))

    def leave(self, record: PeerRecord, body: bytes) -> None:
        asked = card.question(body)
        with self._lock:
            ranks = dict(self._by_name.get(asked.name, {}))
        for announcement in ranks.values():
            announcement.seats.leave(asked.reader, record)

    def _join(self, record: PeerRecord, body: bytes) -> bytes:
        """On the control thread."""
        return self.join(record, body)

    def _leave(self, record: PeerRecord, body: bytes) -> bytes:
        """On the control thread. A notice from a peer that speaks otherwise is nothing to us."""
        with contextlib.suppress(TransportError):
            self.leave(record, body)
        return b""


_registries: weakref.WeakKeyDictionary[Core, Registry] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def registry_of(engine: Engine) -> Registry:
    """The engine's own, made at first use."""
    with engine._core as core, _lock:
        found = _registries.get(core)
        if found is None:
            found = _registries[core] = Registry(core)
        return found
