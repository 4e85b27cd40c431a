"""One end of a link: a stream socket that carries messages with bodies. May import messages, wheel.

It never blocks: what the socket does not take is kept and sent by whoever drives the wheel. What
comes in is checked and given to `receive` on the driving thread, in the order sent.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import select
import socket
import threading
import weakref
from typing import TYPE_CHECKING, TypeAlias

from transport.errors import PeerLost, TransportError
from transport.mesh import messages as m
from transport.mesh.wheel import Gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.mesh.wheel import Wheel

    Body: TypeAlias = bytes | bytearray | memoryview
    Receive: TypeAlias = Callable[["Link", m.Message, Body], None]
    Lost: TypeAlias = Callable[["Link", TransportError], None]

logger = logging.getLogger(__name__)

_STEP = 1 << 16  # read at once; larger bodies go straight to where they stay
_GROWTH = 4 << 20  # bytes of a large body for which memory is taken before they have come
_FULL = 64 << 20  # bytes that may wait before callers do
_TURNS = 16  # reads before other links have their turn
_links: weakref.WeakSet[Link] = weakref.WeakSet()


class Link:
    """`lost` is told once, on the background thread, when nothing more will come or go."""

    def __init__(self, sock: socket.socket, wheel: Wheel, receive: Receive, lost: Lost) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._fd = sock.fileno()
        self._wheel = wheel
        self._receive = receive
        self._lost = lost
        self._closed = False
        self._sending = threading.Lock()
        self._backlog: collections.deque[memoryview] = collections.deque()
        self._waiting = 0  # bytes in it
        self._gates: list[Gate] = []
        self._in = _Incoming(sock, self._dispatch)
        _links.add(self)

    def begin(self) -> None:
        """Messages may come from now on."""
        self._wheel.add(self._fd, self._ready)

    @property
    def full(self) -> bool:
        """Whether so much waits, because the other end does not read, that callers should, too."""
        return self._waiting > _FULL

    def await_room(self, end: float) -> None:
        """Blocks until it is not full any more, is lost, or `end` (time.monotonic) has come."""
        gate = Gate(self._wheel)
        with self._sending:
            if not self.full or self._closed:
                return
            self._gates.append(gate)
        self._wheel.wait(gate, end)

    def send(self, message: m.Message, body: Body = b"") -> None:
        """Raises PeerLost, or InvalidUse for what is too large."""
        frame = m.frame(message, len(body))
        with self._sending:
            if self._closed:
                raise PeerLost("the link is closed")
            parts = [frame + body] if len(body) < _STEP else [frame, body]
            if self._backlog:
                self._backlog.extend(map(memoryview, parts))
                self._waiting += sum(map(len, parts))
            else:
                self._send_now([memoryview(part) for part in parts])

    def close(self) -> None:
        """Idempotent, from any thread. What was sent before arrives; `lost` is told."""
        with self._sending:
            self._closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    # -------------------------------------------------------------------------------------- sending
    def _send_now(self, parts: list[memoryview]) -> None:
        sent: list[int] = []
        try:
            sent.extend(map(self._socket.sendmsg, (parts,)))  # one step: Ctrl-C comes behind it
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise PeerLost(f"the link broke: {error.strerror or error}") from None
        except BaseException:
            self._keep(parts, sum(sent))
            raise
        self._keep(parts, sum(sent))

    def _keep(self, parts: list[memoryview], sent: int) -> None:
        """What the socket did not take."""
        rest = [part[sent:] for part in parts[:1]]
        rest += [part[max(sent - len(parts[0]), 0) :] for part in parts[1:]]
        self._backlog.extend(part for part in rest if part)
        self._waiting += sum(map(len, rest))
        if self._backlog:
            self._wheel.want_room(self._fd, True)

    def _flush(self) -> None:
        with self._sending:
            while self._backlog:
                sent: list[int] = []
                try:
                    sent.extend(map(self._socket.send, (self._backlog[0],)))  # as above
                finally:
                    self._went(sum(sent))
            self._wheel.want_room(self._fd, False)

    def _went(self, sent: int) -> None:
        """Of the first part that waits."""
        part = self._backlog[0]
        if sent < len(part):
            self._backlog[0] = part[sent:]
        else:
            self._backlog.popleft()
        self._waiting -= sent
        if not self.full:
            self._let_go()

    def _let_go(self) -> None:
        while self._gates:
            self._gates.pop().set()

    # ------------------------------------------------------------------------------------ receiving
    def _ready(self, events: int) -> None:
        try:
            if events & select.EPOLLOUT:
                with contextlib.suppress(BlockingIOError):
                    self._flush()
            self._in.read()
        except TransportError as error:
            self._end(error)
        except OSError as error:
            self._end(PeerLost(f"the link broke: {error.strerror or error}"))
        except Exception as error:
            logger.exception("what came on a link could not be handled")
            self._end(PeerLost(f"what came on the link could not be handled: {error}"))
        except BaseException:
            with contextlib.suppress(OSError):
                self._wheel.want_room(self._fd, True)  # interrupted: be called again at once
            raise

    def _dispatch(self, message: m.Message, body: Body) -> None:
        self._receive(self, message, body)

    def _end(self, error: TransportError) -> None:
        with self._sending:
            self._closed = True
            self._backlog.clear()
            self._let_go()
            self._wheel.remove(self._fd)
            self._socket.close()
        # Not on this thread, which may be interrupted: whoever waits must hear of it.
        self._wheel.later(lambda: self._lost(self, error))


class _Incoming:
    """Cuts what comes into messages.

    An interrupt (Ctrl-C) may end `read` anywhere, since the main thread drives as others do. So
    bytes go from the kernel to where they are kept within one call that runs no Python, each
    further step is one assignment, and a message is forgotten after it was handled: its handler
    may see it twice, never not at all.
    """

    def __init__(self, sock: socket.socket, dispatch: Callable[[m.Message, Body], None]) -> None:
        self._socket = sock
        self._dispatch = dispatch
        self._buffer = _Buffer(b"")

    def read(self) -> None:
        """Raises PeerLost at the end, PeerRefused for what is no message."""
        self._cut()  # what an interrupt left
        for _ in range(_TURNS):
            large, chunks = self._buffer.large, self._buffer.chunks
            try:
                if large is not None:
                    large.steps.extend(map(self._socket.recv_into, (large.room(),)))
                    full = True
                else:
                    chunks.extend(map(self._socket.recv, (_STEP,)))
                    full = len(chunks[-1]) == _STEP
            except (BlockingIOError, InterruptedError):
                return
            self._cut()
            if not full and self._buffer.large is None:
                return  # there is no more, or epoll tells

    def _cut(self) -> None:
        buffer = self._buffer
        if buffer.large is not None:
            self._finish(buffer.large)
            return
        if not buffer.chunks:
            return
        data = buffer.chunks[0] if len(buffer.chunks) == 1 else b"".join(buffer.chunks)
        ended = not buffer.chunks[-1]
        while end := self._cut_one(data, buffer.at):
            buffer.at = end
        if self._buffer is buffer:
            self._buffer = _Buffer(data[buffer.at :])
        if ended:
            raise PeerLost("the other end closed the link")

    def _cut_one(self, data: bytes, at: int) -> int:
        """Where the next message begins; 0 when this one is not all here."""
        begin = at + m.HEAD.size
        if len(data) < begin:
            return 0
        message, body = m.lengths(data[at:begin])
        middle, end = begin + message, begin + message + body
        if len(data) >= end:
            self._dispatch(m.decode(data[begin:middle]), data[middle:end])
            return end
        if body > _STEP and len(data) >= middle:
            large = _Large(m.decode(data[begin:middle]), body, data[middle:])
            self._buffer = _Buffer(b"", large)
        return 0

    def _finish(self, large: _Large) -> None:
        if large.steps[-1] == 0 and len(large.steps) > 1:
            raise PeerLost("the other end closed the link within a message")
        if sum(large.steps) == large.length:
            self._dispatch(large.message, large.body)
            self._buffer = _Buffer(b"")


class _Large:
    """A message whose body is read straight to where it stays.

    The body grows as its bytes come: what the other end announces costs no memory and no time.
    """

    def __init__(self, message: m.Message, length: int, begun: bytes) -> None:
        self.message = message
        self.length = length
        self.body = bytearray(begun)
        self.steps = [len(begun)]

    def room(self) -> memoryview:
        have = sum(self.steps)
        if have == len(self.body):
            self.body += bytes(min(self.length - have, _GROWTH))
        return memoryview(self.body)[have:]


class _Buffer:
    """What came and is not handled; `at`: where in it the next message begins."""

    __slots__ = ("at", "chunks", "large")

    def __init__(self, rest: bytes, large: _Large | None = None) -> None:
        self.chunks = [rest] if rest else []
        self.at = 0
        self.large = large


def _close_all() -> None:
    """A forked child must not hold its parent's links open: their ends tell who is alive."""
    for link in tuple(_links):
        with contextlib.suppress(OSError):
            link._socket.close()


os.register_at_fork(after_in_child=_close_all)
