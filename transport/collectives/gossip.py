"""What members of a group tell and ask each other beside their collectives: who is lost, who has
left, how far each of them is. May import card, control, errors.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.collectives.card import Asked, Place, Word, decode, encode
from transport.errors import PeerError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from transport.control.plane import ControlPlane
    from transport.control.records import PeerRecord

_DECIDED = "collectives.decided"
_MAX_DECISIONS = 4096
_WORD, _PLACE = "collectives.word", "collectives.place"


@dataclass(frozen=True, slots=True)
class Listener:
    """Of one communicator. Both are called on the control thread and must return at once; they are
    given the incarnation of whoever says or asks it, which need not be a member."""

    hears: Callable[[bytes, Word], object]
    place: Callable[[bytes], Place]


class Gossip:
    """All listeners of one engine.

    The error of an answer is looked at and never raised: it would hold the frame, which has the
    answer, and the records of lost peers with it.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._listeners: dict[bytes, Listener] = {}
        plane.handle(_WORD, self._hear)
        plane.handle(_PLACE, self._answer)
        plane.handle(_DECIDED, self._say_decided)
        self._decisions: dict[str, bool] = {}
        self._deciding = threading.Lock()

    def listen(self, id: bytes, listener: Listener) -> None:  # noqa: A002
        self._listeners[id] = listener

    def forget(self, id: bytes) -> None:  # noqa: A002
        self._listeners.pop(id, None)

    def tell(self, record: PeerRecord, word: Word) -> None:
        """Lost with a lost peer."""
        with contextlib.suppress(TransportError):  # the engine is closed
            self._plane.send(record, _WORD, encode(word))

    def places(
        self,
        id: bytes,  # noqa: A002
        records: Mapping[int, PeerRecord],
        timeout: float,
    ) -> dict[int, Place]:
        """How far those ranks are that answer in time."""
        end = time.monotonic() + timeout
        asked: dict[int, concurrent.futures.Future[bytes]] = {}
        for rank, record in records.items():
            with contextlib.suppress(TransportError):
                asked[rank] = self._plane.request(record, _PLACE, id, timeout)
        found: dict[int, Place] = {}
        for rank, answer in asked.items():
            with contextlib.suppress(TransportError, concurrent.futures.TimeoutError):
                if answer.exception(max(end - time.monotonic(), 0.001)) is None:
                    found[rank] = decode(answer.result(), Place)
        return found

    # ----------------------------------------------------------------------------------- regrouping
    def decide(self, place: str, decision: bool) -> bool:
        """Whether what is made at that meeting is decided, for this process and for ever: the first
        word counts. Who has told a member that it is not, never takes it for decided later."""
        with self._deciding:
            known = self._decisions.setdefault(place, decision)
            while len(self._decisions) > _MAX_DECISIONS:
                self._decisions.pop(next(iter(self._decisions)))
        return known

    def any_decided(self, place: str, records: Iterable[PeerRecord], timeout: float) -> bool:
        """Whether one of these has seen it decided; those that do not answer are lost soon."""
        question = encode(Asked(place))
        asked: list[concurrent.futures.Future[bytes]] = []
        for record in records:
            with contextlib.suppress(TransportError):
                asked.append(self._plane.request(record, _DECIDED, question, timeout))
        found = False
        for answer in asked:
            found = (answer.exception() is None and answer.result() == b"\1") or found
        return found

    def _say_decided(self, record: PeerRecord, body: bytes) -> bytes:
        place = decode(body, Asked).place
        return b"\1" if self.decide(place, False) else b"\0"

    # -------------------------------------------------------------------------------------- inside
    def _hear(self, record: PeerRecord, body: bytes) -> None:
        with contextlib.suppress(PeerError):  # what says nothing is not listened to
            word = decode(body, Word)
            listener = self._listeners.get(word.id)
            if listener is not None:
                listener.hears(record.incarnation, word)

    def _answer(self, record: PeerRecord, body: bytes) -> bytes:
        listener = self._listeners.get(body)
        if listener is None:
            raise PeerError("this is no communicator of this process")
        return encode(listener.place(record.incarnation))
