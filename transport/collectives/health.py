"""Who of a group is lost or has left, and what becomes of its communicator then.

May import group, gossip, card, errors. A member is lost when its engine is; whoever learns that
first tells all others, and each of them believes a member.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from transport.collectives.card import Place, Word
from transport.collectives.gossip import Listener
from transport.errors import DeadlineExceeded, InvalidUse, RankLost, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.collectives.group import Group

_LOOK = 0.005  # seconds
_CLOSED = "it has closed the communicator"
_GRACE = 1.0  # seconds for an operation that a rank has left behind to end by itself


class Health:
    """`on_failure` is called once, on a thread of its own, with the error that ends the
    communicator; `place` says how far this rank is."""

    def __init__(
        self,
        group: Group,
        on_failure: Callable[[TransportError], object],
        place: Callable[[], Place],
    ) -> None:
        self._group = group
        self._on_failure = on_failure
        self._place = place
        self._lock = threading.Lock()
        self._failed = threading.Event()
        self._known: dict[bytes, int] = {
            peer.incarnation: rank for rank, peer in enumerate(group.peers) if rank != group.rank
        }
        self.error: TransportError | None = None
        self.lost: dict[int, str] = {}  # rank: why
        self.left: set[int] = set()
        self._away = False  # this rank has left
        gossip = group.hub.gossip
        gossip.listen(group.id, Listener(self._hear, self._tell_place))
        self._unwatch = group.hub.watch(self._lost_peer)

    def look(self) -> None:
        """Notices who was lost before this listened."""
        for rank, peer in enumerate(self._group.peers):
            error = peer.lost
            if error is not None:
                self._lose(rank, str(error))

    def fail(self, error: TransportError) -> None:
        """The first error counts. The others are told of a deadline, for it ends theirs, too."""
        if self._end(error) and isinstance(error, DeadlineExceeded):
            self._tell("late", self._group.rank, str(error)[:1000])

    def _end(self, error: TransportError) -> bool:
        with self._lock:
            if self.error is not None:
                return False
            self.error = error.again()
            self._failed.set()
        threading.Thread(
            target=self._on_failure, args=(error,), name="transport-abort", daemon=True
        ).start()
        return True

    def wait_failed(self, timeout: float) -> TransportError | None:
        """Why an operation has failed: who has left is lost then, without grace."""
        end = time.monotonic() + timeout
        while not self._failed.wait(_LOOK) and time.monotonic() < end:
            for rank in tuple(self.left):
                self._lose(rank, _CLOSED)
        return self.error

    def wait_lost(self, rank: int, timeout: float) -> None:
        """Until that rank is known to be lost."""
        end = time.monotonic() + timeout
        while rank not in self.lost and time.monotonic() < end:
            time.sleep(_LOOK)

    def leave(self, *, quietly: bool = False) -> None:
        """Tells the others, and hears nothing any more."""
        self._unwatch()
        self._group.hub.gossip.forget(self._group.id)
        if not quietly:
            self._tell("left", self._group.rank, "")
        self._away = True

    # ------------------------------------------------------------------------ on the control thread
    def _lost_peer(self, incarnation: bytes, error: TransportError) -> None:
        rank = self._known.get(incarnation)
        if rank is None:
            return
        if rank in self.left:
            self._lose_later(rank)
        else:
            self._lose(rank, str(error))

    def _hear(self, incarnation: bytes, word: Word) -> None:
        sender = self._known.get(incarnation)
        if sender is None:
            return
        if word.what == "left":
            self.left.add(sender)
            self._lose_later(sender)
        elif word.what == "late":
            self._end(DeadlineExceeded(f"rank {sender} gave up: {word.why}"))
        elif word.what == "lost" and word.rank < self._group.size and word.rank != sender:
            self._lose(word.rank, word.why)

    def _tell_place(self, incarnation: bytes) -> Place:
        return self._place() if incarnation in self._known else Place(0, "")

    def _lose_later(self, rank: int) -> None:
        """It may have been done with what the others are about to finish."""
        loop = self._group.hub.hall.loop
        loop.call_later(_GRACE, self._lose, rank, _CLOSED)

    def _lose(self, rank: int, why: str) -> None:
        with self._lock:
            if self._away or rank in self.lost or rank == self._group.rank:
                return
            self.lost[rank] = why
        if rank not in self.left:
            self._tell("lost", rank, why[:1000])
        peer = self._group.peers[rank]
        name = self._group.name
        self.fail(
            RankLost(
                f"rank {rank} of {name!r} is lost ({why}); shrink() goes on without it",
                ranks=(rank,),
                peer=peer.name,
            )
        )

    def _tell(self, what: str, rank: int, why: str) -> None:
        if self._away:
            return
        word = Word(self._group.id, what, rank, why)
        for other, peer in enumerate(self._group.peers):
            if other not in (self._group.rank, rank) and other not in self.lost:
                with contextlib.suppress(InvalidUse):  # this rank is leaving
                    self._group.hub.gossip.tell(peer.record, word)
