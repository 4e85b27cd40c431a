"""What is known of each peer, and the table of the living ones. May import border, errors.

A record lives as long as somebody holds it; its native peer is released by the control thread after
that, never by a finalizer.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import enum
import itertools
import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.errors import (
    InvalidUse,
    PeerLost,
    PeerRefused,
    StaleRegion,
    Status,
    TransportError,
    VersionMismatch,
    from_status,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transport.control.address import Address
    from transport.control.border import Border
    from transport.control.streams import LinkKey
    from transport.ffi import NativePeer


class State(enum.Enum):
    """A record only ever moves downward in this list."""

    CONNECTING = "connecting"
    UP = "up"
    LOST = "lost"


@dataclass
class Inbound:
    """A proven connection of the peer that was accepted and is not up yet."""

    came_at: int
    task: asyncio.Task[None] | None


class Contact:
    """How the connection is being made; touched by the control thread only."""

    def __init__(self) -> None:
        self.bringing_up: asyncio.Task[None] | None = None  # the outbound side, with its retries
        self.attempt: asyncio.Task[None] | None = None  # its current round over the addresses
        self.challenged = False
        self.inbound: Inbound | None = None
        self.link_at: int | None = None
        self.key: LinkKey | None = None  # of the link that is up, if it can have more streams
        self.last_stream = 0  # the number of the latest socket that joined it
        self.changed = asyncio.Event()


class PeerRecord:
    """One life of one peer as this engine sees it; any thread may read, only the plane writes."""

    __slots__ = (
        "__weakref__",
        "address",
        "addresses",
        "asked",
        "contact",
        "cookie",
        "error",
        "incarnation",
        "link",
        "name",
        "native",
        "pid",
        "providers",
        "ready",
        "reasons",
        "state",
        "wanted",
    )

    def __init__(
        self, incarnation: bytes, cookie: int, native: NativePeer, addresses: Iterable[Address]
    ) -> None:
        self.incarnation = incarnation
        self.cookie = cookie
        self.native = native
        self.addresses = tuple(addresses)
        self.state = State.CONNECTING
        self.name = incarnation.hex()[:8]
        self.pid = 0
        self.link = ""  # "unix", "tcp" or "self" once it is up
        self.address = ""  # the one that was connected to; "" for an inbound connection
        self.providers: tuple[str, ...] = ()  # attached, the stream's included
        self.reasons: dict[str, str] = {}  # why others are not; of shm, why only its stream is
        self.error: TransportError | None = None
        # Done once it is up or lost: `check` tells. Holds neither the record nor an error, whose
        # traceback would hold it: a lost peer's memory must not wait for the garbage collector.
        self.ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.ready.set_running_or_notify_cancel()  # one waiter must not cancel it for the others
        self.wanted = False  # somebody here asked for it: an inbound failure is not the end
        self.asked = False  # the control thread has been told to bring it up
        self.contact = Contact()

    def __repr__(self) -> str:
        return f"<PeerRecord {self.name} {self.state.value}>"

    def is_self(self, name: str) -> None:
        self.name, self.pid, self.link = name, os.getpid(), "self"
        self.providers = ("shm",)
        self.came_up()

    def came_up(self) -> None:
        self.state = State.UP
        self.ready.set_result(None)
        self.contact.changed.set()

    def lose(self, status: int, text: str) -> None:
        """Only the first reason counts."""
        if self.state is State.LOST:
            return
        self.error = from_status(status, text, peer=self.name)
        self.state = State.LOST
        if not self.ready.done():
            self.ready.set_result(None)
        self.contact.changed.set()

    def check(self) -> None:
        """Raises why it is lost."""
        if self.state is State.LOST:
            raise self.loss()

    def loss(self) -> TransportError:
        """Why it is lost, to be raised: another object each time, since a traceback holds frames,
        and these the record."""
        error = self.error or PeerLost("the peer is lost", peer=self.name)
        return error.again()


class Table:
    """The living records by incarnation, all that somebody still holds by cookie."""

    def __init__(self, border: Border, wake: Callable[[], None]) -> None:
        self._border = border
        self._wake = wake  # makes the control thread call release_forgotten soon
        self._lock = threading.Lock()
        self._living: dict[bytes, PeerRecord] = {}
        self._by_cookie: weakref.WeakValueDictionary[int, PeerRecord] = (
            weakref.WeakValueDictionary()
        )
        self._natives: dict[int, NativePeer] = {}  # opened and not released
        self._cookies = itertools.count(1)
        self._forgotten: collections.deque[int] = collections.deque()
        self._closed = False

    def find(self, incarnation: bytes) -> PeerRecord | None:
        return self._living.get(incarnation)

    def by_cookie(self, cookie: int) -> PeerRecord | None:
        return self._by_cookie.get(cookie)

    def living(self) -> tuple[PeerRecord, ...]:
        with self._lock:
            return tuple(self._living.values())

    def obtain(
        self, incarnation: bytes, addresses: Iterable[Address], *, oneself: str | None = None
    ) -> tuple[PeerRecord, bool]:
        """The living record of that incarnation, or a new one and True.

        `oneself` is this engine's name when it is its own peer: that record is up at once.
        """
        with self._lock:
            if self._closed:
                raise InvalidUse("this engine is closed")
            record = self._living.get(incarnation)
            if record is not None:
                return record, False
            cookie = next(self._cookies)
            if oneself is not None:
                native = self._border.open_self(cookie)
            else:
                native = self._border.open_peer(incarnation, cookie)
            self._natives[cookie] = native
            record = PeerRecord(incarnation, cookie, native, addresses)
            weakref.finalize(record, self._forget, cookie).atexit = False
            if oneself is not None:
                record.is_self(oneself)
            # Last: whoever finds it finds it whole, wherever an exception interrupts this.
            self._living[incarnation] = self._by_cookie[cookie] = record
            return record, True

    def hide(self, record: PeerRecord) -> None:
        """Nobody finds it any more."""
        with self._lock:
            if self._living.get(record.incarnation) is record:
                del self._living[record.incarnation]

    def bury(self, record: PeerRecord, status: int, text: str) -> bool:
        """The peer is lost: nobody finds it any more and its transfers fail. False: it was already.

        Control thread only.
        """
        self.hide(record)
        if record.state is State.LOST:
            return False
        self._border.down(record.native, status, text)  # first: who is told of it finds it so
        record.lose(status, text)
        return True

    def _forget(self, cookie: int) -> None:
        """From a finalizer, hence on any thread and inside anything: takes no lock."""
        self._forgotten.append(cookie)
        if not self._closed:
            self._wake()

    def release_forgotten(self) -> None:
        """Gives native peers back whose records nobody holds any more. Control thread only."""
        while self._forgotten:
            native = self._natives.pop(self._forgotten.popleft(), None)
            if native is not None:
                self._border.release(native)

    def close(self) -> None:
        """Releases every native peer: the engine goes next and no record may be used after it."""
        with self._lock:
            self._closed = True
            natives = list(self._natives.values())
            self._natives.clear()
        for native in natives:
            self._border.release(native)


_STATUSES: tuple[tuple[type[BaseException], Status], ...] = (
    (StaleRegion, Status.STALE),
    (VersionMismatch, Status.VERSION),
    (PeerRefused, Status.PEER_REFUSED),
)


def status_of(error: BaseException) -> Status:
    """The native status that tells a peer's waiting transfers why it cannot be had."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), Status.PEER_LOST)
