"""A small store that one engine of a group serves and the others ask over the control plane.

May import card, hub, engine, control and errors. It is where ranks find each other and where
carriers exchange what they need to begin. What may be kept is bounded, and it is kept for as long
as the meeting is open.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from typing import TYPE_CHECKING

from transport.collectives.card import (
    MAX_VALUE,
    PROTOCOL,
    Answer,
    Question,
    decode,
    encode,
)
from transport.errors import DeadlineExceeded, InvalidUse, PeerError

if TYPE_CHECKING:
    from transport.collectives.hub import Hub, HubPeer
    from transport.control.records import PeerRecord

TOPIC = "collectives.meeting"
_MAX_MEETINGS = 256
_MAX_KEYS = 1 << 17  # of one meeting
_MAX_BYTES = 256 << 20  # of one meeting
_PATIENCE = 10.0  # seconds that one question may wait for a key
_GRACE = 5.0  # seconds for the answer beyond that
_LEAST = 0.01


class Hall:
    """The meetings that this engine serves. All but `open` and `shut` is for the control thread."""

    def __init__(self, hub: Hub) -> None:
        self._meetings: dict[str, Table] = {}
        plane = hub.engine._core.plane
        self.loop = plane._loop
        plane.handle(TOPIC, self._answer)

    def open(self, name: str) -> None:
        """From any thread. Raises InvalidUse while there is one of that name."""
        if len(self._meetings) >= _MAX_MEETINGS:
            raise InvalidUse("this engine serves too many meetings: close communicators")
        made, there = Table(), self._meetings.get(name)
        if there is not None and there.over:
            self._meetings[name] = made
        elif self._meetings.setdefault(name, made) is not made:
            raise InvalidUse(
                f"this engine serves {name!r} already: close that communicator, or use another name"
            )

    def give_up(self, name: str) -> None:
        """Who comes can still read why nothing came of it; the next `open` replaces it."""
        table = self._meetings.get(name)
        if table is not None:
            table.over = True

    def shut(self, name: str) -> None:
        self._meetings.pop(name, None)

    async def ask(self, question: Question) -> Answer:
        table = self._meetings.get(question.meeting)
        if table is None:
            raise PeerError(f"there is no meeting {question.meeting!r:.80} here (yet)")
        return await table.ask(question)

    async def _answer(self, record: PeerRecord, body: bytes) -> bytes:
        return encode(await self.ask(decode(body, Question)))


class Table:
    """The keys of one meeting."""

    def __init__(self) -> None:
        self.over = False
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._awaited: dict[str, list[asyncio.Future[None]]] = {}

    async def ask(self, question: Question) -> Answer:
        key = question.key
        if question.verb == "get":
            return await self._get(key, question.patience)
        if question.verb == "set":
            self._set(key, question.value)
            return Answer(True)
        if question.verb == "add":
            number = _number(self._values.get(key, b"0")) + question.number
            self._set(key, str(number).encode())
            return Answer(True, number=number)
        if question.verb == "swap":  # `expected` is b"" for a key that is not there
            before = self._values.get(key, b"")
            if before == question.expected:
                self._set(key, question.value)
                return Answer(True, question.value)
            return Answer(False, before)
        if question.verb == "drop":
            value = self._values.pop(key, None)
            self._bytes -= len(value or b"")
            return Answer(value is not None)
        if question.verb == "count":  # of keys that begin so
            return Answer(True, number=sum(1 for each in self._values if each.startswith(key)))
        raise PeerError(f"a meeting does not know {question.verb!r}")

    async def _get(self, key: str, patience: float) -> Answer:
        value = self._values.get(key)
        if value is None and patience > 0:
            came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = self._awaited.setdefault(key, [])
            waiting.append(came)
            try:
                await asyncio.wait_for(came, patience)
            except asyncio.TimeoutError:
                pass
            finally:
                if came in waiting:
                    waiting.remove(came)
                if not waiting and self._awaited.get(key) is waiting:
                    del self._awaited[key]
            value = self._values.get(key)
        return Answer(False) if value is None else Answer(True, value)

    def _set(self, key: str, value: bytes) -> None:
        former = self._values.get(key)
        grown = self._bytes + len(value) - len(former or b"")
        if (former is None and len(self._values) >= _MAX_KEYS) or grown > _MAX_BYTES:
            raise PeerError("this meeting is full")
        self._values[key], self._bytes = value, grown
        for came in self._awaited.pop(key, ()):
            if not came.done():
                came.set_result(None)


def _number(value: bytes) -> int:
    try:
        return int(value)
    except ValueError:
        raise PeerError("this key holds no number") from None


class Meeting:
    """A way to one meeting, here or at a peer. Keys are under `prefix`. Any thread may ask."""

    def __init__(self, hub: Hub, peer: HubPeer | None, name: str, prefix: str = "") -> None:
        self._hub = hub
        self._peer = peer  # None: it is served here
        self._name = name
        self._prefix = prefix

    @property
    def place(self) -> str:
        """Its name where it is served."""
        return self._name

    def under(self, prefix: str) -> Meeting:
        """The same with keys of its own."""
        return Meeting(self._hub, self._peer, self._name, f"{self._prefix}{prefix}/")

    def leave(self) -> None:
        """Ends it where it is served here; else lets the peer go. Asks nothing any more."""
        if self._peer is None:
            self._hub.hall.shut(self._name)
        else:
            self._peer.let_go()

    def set(self, key: str, value: bytes, timeout: float) -> None:
        """Raises what a question to a peer raises; PeerError when the meeting is full."""
        self._ask(timeout, "set", key, value=value)

    def get(self, key: str, timeout: float) -> bytes:
        """Waits until somebody has set it. Raises DeadlineExceeded."""
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            patience = min(max(left, 0.0), _PATIENCE)
            answer = self._ask(max(left, _LEAST), "get", key, patience=patience)
            if answer.found:
                return answer.value
            if time.monotonic() >= end:
                raise DeadlineExceeded(f"nobody has set {key!r} within {timeout:.3g} s")

    def peek(self, key: str, timeout: float) -> bytes | None:
        """What is there now."""
        answer = self._ask(timeout, "get", key)
        return answer.value if answer.found else None

    def add(self, key: str, number: int, timeout: float) -> int:
        return self._ask(timeout, "add", key, number=number).number

    def swap(self, key: str, expected: bytes, value: bytes, timeout: float) -> bytes:
        """Sets it where `expected` is there (b"": nothing); what is there then."""
        answer = self._ask(timeout, "swap", key, value=value, expected=expected)
        return answer.value

    def drop(self, key: str, timeout: float) -> bool:
        return self._ask(timeout, "drop", key).found

    def count(self, prefix: str, timeout: float) -> int:
        """Of keys that begin so."""
        return self._ask(timeout, "count", prefix).number

    def _ask(
        self,
        timeout: float,
        verb: str,
        key: str,
        *,
        value: bytes = b"",
        expected: bytes = b"",
        number: int = 0,
        patience: float = 0.0,
    ) -> Answer:
        if len(value) > MAX_VALUE:
            raise InvalidUse(f"a value has at most {MAX_VALUE} bytes, not {len(value)}")
        key = self._prefix + key
        question = Question(PROTOCOL, self._name, verb, key, value, expected, number, patience)
        limit = max(timeout, patience) + _GRACE
        if self._peer is None:
            asked = asyncio.run_coroutine_threadsafe(
                self._hub.hall.ask(question), self._hub.hall.loop
            )
            try:
                return asked.result(limit)
            except concurrent.futures.TimeoutError:
                raise DeadlineExceeded(f"the meeting did not answer within {limit:.3g} s") from None
            except concurrent.futures.CancelledError:
                raise InvalidUse("the engine of these communicators is closed") from None
            finally:
                del asked  # what it raises holds this frame, hence its caller's peers
        plane = self._hub.engine._core.plane
        answer = plane.request(self._peer.record, TOPIC, encode(question), limit).result()
        return decode(answer, Answer)


def await_meeting(meeting: Meeting, timeout: float) -> None:
    """Until the peer serves it: whoever opens it may be later than who joins.

    Raises DeadlineExceeded, PeerLost.
    """
    end = time.monotonic() + timeout
    while True:
        try:
            meeting.peek("", max(end - time.monotonic(), _LEAST))
        except PeerError as error:
            if type(error) is not PeerError:
                raise
            if time.monotonic() >= end:
                raise DeadlineExceeded(f"{error}; waited {timeout:.3g} s") from None
            time.sleep(_LEAST)
        else:
            return
