"""The control plane of one engine: an asyncio loop in one daemon thread, and the doors to it.

May import everything of control, config, errors. What other threads may call says so; the rest runs
on the control thread. It never waits for user code: handlers and callbacks must return at once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import logging
import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from transport.control import border as border_events
from transport.control.address import is_unix, parse, parse_all
from transport.control.border import Border
from transport.control.calls import Calls
from transport.control.connector import Connector, Surroundings, readable
from transport.control.doors import open_doors
from transport.control.guests import Reception
from transport.control.handshake import Party, Refused
from transport.control.homes import Homes
from transport.control.messages import (
    MAX_ADDRESSES,
    MAX_CONTROL,
    MAX_NAME,
    SECRET,
    Identity,
)
from transport.control.records import PeerRecord, State, Table
from transport.errors import (
    DeadlineExceeded,
    InvalidUse,
    NativeError,
    PeerLost,
    PeerRefused,
    StaleRegion,
    Status,
    TransportError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from transport.config import Settings
    from transport.control.address import Address
    from transport.control.border import Event
    from transport.control.calls import Handler
    from transport.control.doors import Door
    from transport.control.guests import Guest
    from transport.control.secret import Secret
    from transport.ffi import NativeEngine
    from transport.providers.base import Endpoint

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

_ENVELOPE = 128  # bytes of a control message beside its body, at most
_EVENTS = 256  # handled before the loop gets its turn
_JOIN = 10.0  # seconds for the control thread to end; nothing in it blocks


def _nothing(_: object) -> None:
    pass


@dataclass(frozen=True)
class Callbacks:
    """What the engine wants to hear, on the control thread."""

    on_retired: Callable[[int], None] = _nothing  # cookie of a transfer that was abandoned
    on_provider: Callable[[int], None] = _nothing  # identifier of one that has changed
    on_up: Callable[[PeerRecord], None] = _nothing
    on_lost: Callable[[PeerRecord], None] = _nothing


@dataclass(frozen=True)
class Self:
    """Who this engine is."""

    incarnation: bytes
    name: str
    listen: str | Iterable[str] | None = None
    advertise: str | None = None


class ControlPlane:
    """Finds, proves and keeps an engine's peers. Binds and starts when it is made."""

    def __init__(
        self,
        engine: NativeEngine,
        settings: Settings,
        *,
        oneself: Self,
        secret: Secret | None,
        endpoints: Mapping[str, Endpoint],
        absent: Mapping[str, str] | None = None,
        callbacks: Callbacks | None = None,
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        if secret is None and _wants_tcp(oneself.listen):
            raise InvalidUse(
                "listening on TCP needs the job's secret; secret=False is for unix only"
            )
        self._border = Border(engine)
        self._settings = settings
        self._endpoints = dict(endpoints)
        self._absent = dict(absent or {})  # why peers are offered no others
        self._callbacks = callbacks or Callbacks()
        self._lock = threading.Lock()
        self._homes = Homes(settings.tcp_interfaces)
        self._closed = False
        self._stop = asyncio.Event()
        self._table = Table(self._border, self._wake)
        self._thread = threading.Thread(target=self._run, name="transport-control", daemon=True)
        with contextlib.ExitStack() as undo:
            self._loop = _new_loop()
            undo.callback(self._loop.close)
            self._doors = open_doors(
                oneself.listen, oneself.advertise, oneself.incarnation, self._homes
            )
            undo.callback(self._close_doors)
            self.addresses = _told(self._doors)
            self.identity = self._introduce(oneself)
            self._calls = Calls(self._loop, self._border, handlers or {})
            self._connector = Connector(self._surroundings(secret), self._loop)
            self._reception = Reception(secret, self._serve, self._connector.moment, self._loop)
            _start(self._thread)
            undo.pop_all()
        _living.add(self)

    def _introduce(self, me: Self) -> Identity:
        name, depth = me.name[:MAX_NAME], self._settings.notify_depth
        return Identity(me.incarnation, name, os.getpid(), depth, self.addresses)

    def _close_doors(self) -> None:
        for door in self._doors:
            door.close()

    def _surroundings(self, secret: Secret | None) -> Surroundings:
        return Surroundings(
            party=Party(self.identity, secret),
            table=self._table,
            border=self._border,
            endpoints=self._endpoints,
            absent=self._absent,
            homes=self._homes,
            connect_timeout=self._settings.connect_timeout,
            came_up=self._came_up,
            lose=self._lose,
        )

    # ------------------------------------------------------------------------ from any other thread
    def peer(self, incarnation: bytes, addresses: Iterable[str]) -> PeerRecord:
        """The record of that engine, at once; a new one is being connected."""
        record = self._table.find(incarnation)
        if record is not None and record.state is State.UP:
            return record
        if incarnation == self.identity.incarnation:
            return self.self_record()
        record, _ = self._table.obtain(incarnation, parse_all(addresses))
        record.wanted = True
        if not record.asked:  # not "if it is new": Ctrl-C may have come between there and here
            self._call(self._connector.bring_up, record)
            record.asked = True
        return record

    def self_record(self) -> PeerRecord:
        """The record by which this engine reaches its own regions."""
        record, new = self._table.obtain(self.identity.incarnation, (), oneself=self.identity.name)
        if new:
            self._call(self._report, self._callbacks.on_up, record)
        return record

    def connect(self, address: str, timeout: float | None = None) -> PeerRecord:
        """The record of whoever listens there, proven and connected.

        Raises DeadlineExceeded, PeerLost, PeerRefused, VersionMismatch or InvalidUse.
        """
        if threading.get_ident() == self._thread.ident:
            raise InvalidUse("connect() waits, which handlers and callbacks must not do")
        limit = self._settings.connect_timeout if timeout is None else timeout
        parsed = parse(address)
        with self._lock:
            self._check_open()
            future = asyncio.run_coroutine_threadsafe(self._connect(parsed, limit), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise InvalidUse("this engine was closed while it connected") from None
        finally:
            del future  # what it raises holds this frame

    def disconnect(self, record: PeerRecord) -> None:
        """Lets the peer go; its transfers fail. Who asks for it from now on gets a new record."""
        self._table.hide(record)
        self._call(self._lose, record, Status.CLOSED, "the peer was closed on this side")

    @property
    def peers(self) -> tuple[PeerRecord, ...]:
        return self._table.living()

    def record(self, cookie: int) -> PeerRecord | None:
        """The record with that cookie, as long as somebody holds it."""
        return self._table.by_cookie(cookie)

    def handle(self, topic: str, handler: Handler) -> None:
        """Registers who answers questions and takes notices on a topic.

        What peers may ask at once is better given to the constructor: they can already connect.
        """
        self._calls.handle(topic, handler)

    def send(self, record: PeerRecord, topic: str, body: bytes) -> None:
        """A notice; waits for a peer that is being connected, and is lost with a lost one."""
        if len(body) > MAX_CONTROL - _ENVELOPE:
            raise InvalidUse(f"a notice of {len(body)} bytes, over {MAX_CONTROL - _ENVELOPE}")
        self._call(self._calls.tell, record, topic, body)

    def request(
        self, record: PeerRecord, topic: str, body: bytes, timeout: float | None = None
    ) -> concurrent.futures.Future[bytes]:
        """A question; its future may raise DeadlineExceeded, PeerLost or PeerError (its words)."""
        limit = self._settings.connect_timeout if timeout is None else timeout
        future: concurrent.futures.Future[bytes] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # it always ends, at the latest with its time-out
        self._call(self._calls.ask, record, topic, body, limit, future)
        return future

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> bool:
        """Lets all peers go, ends the thread, releases every native peer. Idempotent.

        False: the thread does not end, and may use the native engine at any time.
        """
        if threading.get_ident() == self._thread.ident:
            raise InvalidUse("close() waits, which handlers and callbacks must not do")
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_JOIN)
        if self._thread.is_alive():
            logger.error("the control thread does not end: a handler or callback blocks it")
            return False
        self._table.close()
        return True

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Runs it on the control thread. What is called before close() is run before it stops."""
        with self._lock:
            self._check_open()
            self._loop.call_soon_threadsafe(function, *arguments)

    def poke(self, function: Callable[[], object]) -> None:
        """As `_call`, for finalizers: they run inside anything, also inside `_call` itself with its
        lock held. What comes too late is not run.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidUse("this engine is closed")

    def _wake(self) -> None:
        self.poke(self._table.release_forgotten)

    # ------------------------------------------------------------------------ on the control thread
    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        except BaseException:
            logger.exception("the control thread failed")
        finally:
            self._loop.close()

    async def _main(self) -> None:
        self._reception.open(self._doors)
        self._loop.add_reader(self._border.event_fd, self._pump)
        try:
            await self._stop.wait()
        finally:
            self._loop.remove_reader(self._border.event_fd)
            await self._shut()

    async def _shut(self) -> None:
        await self._reception.close()
        await self._connector.close()
        for record in self._table.living():
            self._lose(record, Status.CLOSED, "the engine was closed")
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _connect(self, address: Address, limit: float) -> PeerRecord:
        deadline = self._loop.time() + limit
        try:
            identity = await self._connector.identify(address, limit)
            if identity.incarnation == self.identity.incarnation:
                return self.self_record()
            known = readable(identity.addresses)
            record = self.peer(identity.incarnation, map(str, (address, *known)))
            ready = asyncio.shield(asyncio.wrap_future(record.ready))
            await asyncio.wait_for(ready, deadline - self._loop.time())
            record.check()
            return record
        except (TransportError, asyncio.TimeoutError) as error:
            if self._loop.time() < deadline:
                raise
            late = f"connecting to {address} took more than {limit:.3g} s"
            raise DeadlineExceeded(f"{late}: {error}" if str(error) else late) from None

    async def _serve(self, guest: Guest) -> None:
        try:
            await self._connector.serve(guest, lambda: self._reception.proven(guest))
        except (PeerLost, StaleRegion) as error:  # it went away, or looks for somebody else
            logger.debug("a connection from %s ended: %s", guest.source, error)
        except TransportError as error:
            if isinstance(error, Refused) and error.code != SECRET:
                logger.debug("refused %s: %s", guest.source, error)
            else:
                self._reception.complain(guest.source, str(error))

    def _came_up(self, record: PeerRecord) -> None:
        record.came_up()
        self._calls.flush(record)
        self._report(self._callbacks.on_up, record)

    def _lose(self, record: PeerRecord, status: int, text: str) -> None:
        if self._table.bury(record, status, text):
            self._calls.lost(record)
            self._report(self._callbacks.on_lost, record)

    def _report(self, callback: Callable[[_T], None], value: _T) -> None:
        try:
            callback(value)
        except Exception:
            logger.exception("a callback of the control plane failed")

    def _pump(self) -> None:
        for _ in range(_EVENTS):
            event = self._border.next_event()
            if event is None:
                break
            self._dispatch(event)
        self._table.release_forgotten()

    def _dispatch(self, event: Event) -> None:
        if event.kind == border_events.RETIRED:
            self._report(self._callbacks.on_retired, event.cookie)
            return
        if event.kind == border_events.PROVIDER:
            logger.warning("%s", event.text)
            self._report(self._callbacks.on_provider, event.cookie)
            return
        record = self._table.by_cookie(event.cookie)
        if record is None or record.state is not State.UP:
            return
        if event.kind == border_events.PEER_DOWN:
            self._lose(record, event.status, event.text)
        elif event.kind == border_events.WIDEN:
            self._connector.widen(record, event.status)
        elif event.kind == border_events.CONTROL:
            try:
                self._calls.received(record, event.data)
            except PeerRefused as error:
                self._lose(record, Status.PROTOCOL, str(error))


def _told(doors: tuple[Door, ...]) -> tuple[str, ...]:
    """What others are told: every door's first address before the further ones."""
    first = [door.address for door in doors]
    rest = [address for door in doors for address in door.others]
    return tuple(map(str, (*first, *rest)))[:MAX_ADDRESSES]


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.new_event_loop()
    except OSError as error:
        text = f"making the control plane's event loop: {error.strerror} (see ulimit -n)"
        raise NativeError(text, errno=error.errno or 0) from None


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        raise NativeError(f"starting the control thread: {error}", errno=errno.EAGAIN) from None


# A child made by fork must not keep the doors open: who connected there would wait for nobody.
_living: weakref.WeakSet[ControlPlane] = weakref.WeakSet()


def _in_child() -> None:
    for plane in _living:
        for door in plane._doors:
            door.sock.close()


os.register_at_fork(after_in_child=_in_child)


def _wants_tcp(listen: str | Iterable[str] | None) -> bool:
    texts = (listen,) if isinstance(listen, str) else tuple(listen or ())
    return any(not is_unix(parse(text)) for text in texts)
