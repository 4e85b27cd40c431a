"""Questions, answers and notices between connected engines. May import border, messages, errors.

A topic is a name; the room that registers it owns the encoding of its bodies. Everything here
runs on the control thread. What comes from a peer is bounded: the size by the link, the number of
open questions here.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from transport.control import messages as m
from transport.control.records import PeerRecord, State
from transport.errors import DeadlineExceeded, InvalidUse, PeerError, TransportError

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

    from transport.control.border import Border

logger = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[PeerRecord, bytes], "bytes | Awaitable[bytes] | None"]
"""Answers a question (bytes, or a coroutine that returns them) or takes a notice (None).

It must return at once; a TransportError that it raises is told to the peer.
"""

Reply: TypeAlias = "concurrent.futures.Future[bytes]"

MAX_OPEN = 256  # questions of one peer that are being answered
MAX_QUEUED = 1024  # messages that wait for one peer's link
_PAUSE = 0.005  # before a full link is tried again


class Calls:
    """All conversations of one engine."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        border: Border,
        handlers: Mapping[str, Handler],
    ) -> None:
        self._loop = loop
        self._border = border
        self._handlers = dict(handlers)
        self._numbers = itertools.count(1)
        self._pending: dict[int, tuple[PeerRecord, Reply, asyncio.TimerHandle]] = {}
        self._queues: dict[int, collections.deque[bytes]] = {}
        self._answering: dict[int, set[asyncio.Task[None]]] = {}

    def handle(self, topic: str, handler: Handler) -> None:
        self._handlers[topic] = handler

    # -------------------------------------------------------------------------------------- outward
    def tell(self, record: PeerRecord, topic: str, body: bytes) -> None:
        with contextlib.suppress(TransportError):  # a notice to a lost peer is lost with it
            self._post(record, m.Tell(topic, body))

    def ask(
        self, record: PeerRecord, topic: str, body: bytes, timeout: float, reply: Reply
    ) -> None:
        number = next(self._numbers)
        timer = self._loop.call_later(timeout, self._expire, number, topic, timeout)
        self._pending[number] = (record, reply, timer)
        try:
            self._post(record, m.Ask(number, topic, body))
        except TransportError as error:
            self._settle(number, error=error)

    def _post(self, record: PeerRecord, message: m.Control) -> None:
        if record.state is State.LOST:
            raise record.loss()
        data = m.encode(message)
        if len(data) > m.MAX_CONTROL:
            raise InvalidUse(f"a control message of {len(data)} bytes, over {m.MAX_CONTROL}")
        queue = self._queues.setdefault(record.cookie, collections.deque())
        if len(queue) >= MAX_QUEUED:
            raise PeerError("too many messages wait for this peer", peer=record.name)
        queue.append(data)
        if len(queue) == 1:
            self.flush(record)

    def flush(self, record: PeerRecord) -> None:
        """Sends what waits; called again when the record comes up or its link has room."""
        queue = self._queues.get(record.cookie)
        while queue and record.state is State.UP:
            try:
                if not self._border.send(record.native, queue[0]):
                    self._loop.call_later(_PAUSE, self.flush, record)
                    return
            except TransportError as error:
                # Mostly the peer is down and the event that says so comes next.
                logger.debug("cannot send to %s: %s", record.name, error)
                self._loop.call_later(_PAUSE, self.flush, record)
                return
            queue.popleft()

    def _expire(self, number: int, topic: str, timeout: float) -> None:
        error = DeadlineExceeded(f"the peer did not answer {topic!r} within {timeout:g} s")
        self._settle(number, error=error)

    def _settle(
        self, number: int, *, body: bytes = b"", error: TransportError | None = None
    ) -> None:
        found = self._pending.pop(number, None)
        if found is None:
            return  # answered too late
        _, reply, timer = found
        timer.cancel()
        if error is not None:
            # The frames that it came through have the reply, which would hold them, and the record.
            reply.set_exception(error.with_traceback(None))
        else:
            reply.set_result(body)

    # --------------------------------------------------------------------------------------- inward
    def received(self, record: PeerRecord, data: bytes) -> None:
        """Raises PeerRefused when the peer broke the protocol."""
        message = m.decode_control(data)
        if isinstance(message, m.Answer):
            self._answered(record, message)
        elif isinstance(message, m.Ask):
            self._asked(record, message)
        else:
            self._told(record, message)

    def _answered(self, record: PeerRecord, message: m.Answer) -> None:
        found = self._pending.get(message.number)
        if found is None or found[0] is not record:
            return  # late, or not theirs to answer
        if message.ok:
            self._settle(message.number, body=message.body)
        else:
            text = message.body.decode("utf-8", "replace")
            self._settle(message.number, error=PeerError(text, peer=record.name))

    def _told(self, record: PeerRecord, message: m.Tell) -> None:
        handler = self._handlers.get(message.topic)
        if handler is None:
            logger.debug("%s tells of %r, which nobody here knows", record.name, message.topic)
            return
        try:
            handler(record, message.body)
        except Exception:
            logger.exception("the handler of %r failed", message.topic)

    def _asked(self, record: PeerRecord, message: m.Ask) -> None:
        open_tasks = self._answering.setdefault(record.cookie, set())
        if len(open_tasks) >= MAX_OPEN:
            self._answer(record, message.number, TransportError("too many questions at once"))
            return
        task = self._loop.create_task(self._answer_with_handler(record, message))
        open_tasks.add(task)
        task.add_done_callback(open_tasks.discard)

    async def _answer_with_handler(self, record: PeerRecord, message: m.Ask) -> None:
        handler = self._handlers.get(message.topic)
        answer: bytes | TransportError | None
        try:
            if handler is None:
                raise InvalidUse(f"nobody here answers {message.topic!r}")
            given = handler(record, message.body)
            answer = await given if inspect.isawaitable(given) else given
        except TransportError as error:
            answer = error.with_traceback(None)  # which holds the record, from this very frame
        except Exception:
            logger.exception("the handler of %r failed", message.topic)
            answer = TransportError("the peer failed to answer; its log says why")
        self._answer(record, message.number, b"" if answer is None else answer)

    def _answer(self, record: PeerRecord, number: int, answer: bytes | TransportError) -> None:
        ok = isinstance(answer, bytes)
        body = answer if isinstance(answer, bytes) else str(answer).encode()[:4096]
        try:
            self._post(record, m.Answer(number, ok, body))
        except InvalidUse as error:
            self._answer(record, number, error)
        except TransportError as error:
            logger.debug("no answer to %s: %s", record.name, error)

    # ------------------------------------------------------------------------------------------ end
    def lost(self, record: PeerRecord) -> None:
        """Ends all conversations with a peer that is lost."""
        self._queues.pop(record.cookie, None)
        for task in self._answering.pop(record.cookie, set()):
            task.cancel()
        mine = [number for number, found in self._pending.items() if found[0] is record]
        for number in mine:
            self._settle(number, error=record.loss())
