"""The one engine of this process by which its communicators talk, and what peers say to them.

May import meeting, gossip, card, engine, control, memory, errors and types. A peer's notification
begins with the id of a communicator and goes to that one's mailbox. Whoever waits for its mailbox
takes what comes for all of them; while nobody waits a thread of low rate does, so that no peer runs
out of credits.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from transport.collectives.card import ID_BYTES
from transport.collectives.gossip import Gossip
from transport.collectives.meeting import Hall
from transport.engine.batch import Read
from transport.engine.engine import Engine
from transport.engine.submit import when_up
from transport.errors import InvalidUse, PeerError, PeerLost, TransportError
from transport.memory.remote import RemoteRegion
from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.control.records import PeerRecord
    from transport.engine.core import Core
    from transport.engine.transfer import Transfer

MAX_PAYLOAD = 1000  # bytes
_DOOR = "collectives.door"
_MAX_UNREAD = 1 << 16  # messages in one mailbox
_SLICE = 0.02  # seconds that whoever waits stays in C
_IDLE = 0.02  # seconds between looks while nobody waits


class Note(NamedTuple):
    """What a peer said to a communicator. `peer` is the incarnation of its engine."""

    peer: bytes
    payload: bytes


class HubPeer:
    """The hub of another process (or this one), as one group sees it, until that lets it go. `door`
    is what its notifications go to."""

    __slots__ = ("__weakref__", "_core", "_error", "_name", "_record", "door")

    def __init__(self, core: Core, door: RemoteRegion, record: PeerRecord) -> None:
        self._core = core
        self.door = door
        self._name = record.name
        self._error: TransportError | None = None
        self._record: PeerRecord | None = record

    @property
    def record(self) -> PeerRecord:
        """Raises InvalidUse once it was let go."""
        record = self._record
        if record is None:
            raise InvalidUse(f"the communicator that had {self._name} is closed")
        return record

    @property
    def incarnation(self) -> bytes:
        return self.door.incarnation

    @property
    def name(self) -> str:
        record = self._record
        return self._name if record is None else record.name

    @property
    def lost(self) -> TransportError | None:
        """Why this peer can no longer be reached; None while it can."""
        record = self._record
        return self._error if record is None else record.error

    def connected(self, timeout: float | None = None) -> HubPeer:
        """Itself, once there is a link. Raises what connecting raises."""
        when_up(self._core, self.record, timeout)
        return self

    def again(self) -> HubPeer:
        """The same for another group."""
        return HubPeer(self._core, self.door, self.record)

    def let_go(self) -> None:
        """Its link is no longer held from here: that of a process which has died goes at once,
        whoever still has what was of the group. Idempotent."""
        record = self._record
        if record is not None:
            self._name, self._error = record.name, record.error
            self._record = None


class Hub(Closing):
    """One engine whose notifications are all for communicators. See `here`, `of`."""

    def __init__(self, engine: Engine, *, owned: bool = False) -> None:
        self.engine = engine
        self._owned = owned
        self._core: Core = engine._core
        self._memory = bytearray(1)
        self._region = engine.register(self._memory, access="read")
        self.door = self._region.remote()
        self._lock = threading.Lock()
        self._mailboxes: dict[bytes, Mailbox] = {}
        self._leading = False  # somebody takes what comes
        self._looked = 0.0
        self._watchers: list[Callable[[bytes, TransportError], object]] = []
        self._core.on_lost.append(self._lost)
        self.hall = Hall(self)
        self.gossip = Gossip(self._core.plane)
        self._core.plane.handle(_DOOR, lambda record, body: self.door.to_bytes())
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # --------------------------------------------------------------------------------------- peers
    def peer(self, address: str, timeout: float | None = None) -> HubPeer:
        """The hub whose engine listens there, connected. Raises what Engine.connect raises, and
        PeerError where it has no communicators."""
        record = self.engine.connect(address, timeout=timeout)._record
        answer = self._core.plane.request(record, _DOOR, b"", timeout).result()
        door = RemoteRegion.from_bytes(answer)
        if door.incarnation != record.incarnation:
            raise PeerError("it answered with somebody else's door", peer=record.name)
        return HubPeer(self._core, door, record)

    def peer_at(self, door: RemoteRegion) -> HubPeer:
        """The hub with that door, at once; where there is no link yet, one is being made."""
        record = self._core.plane.peer(door.incarnation, door.addresses)
        return HubPeer(self._core, door, record)

    def send(self, peer: HubPeer, id: bytes, payload: bytes) -> Transfer | None:  # noqa: A002
        """Begins to tell a peer's mailbox of that id; None where the peer is this process.

        Nobody needs to wait for it: that a peer is lost is told by `watch`.
        """
        if len(id) != ID_BYTES or len(payload) > MAX_PAYLOAD:
            raise InvalidUse(f"a message has {ID_BYTES} bytes of id and at most {MAX_PAYLOAD} more")
        if peer.incarnation == self.engine.incarnation:
            self._deliver(peer.incarnation, id + payload)
            return None
        nothing = Read(peer.door.bytes(0, 0), bytearray(0))
        return self.engine.submit([nothing], notify=id + payload)

    def watch(self, callback: Callable[[bytes, TransportError], object]) -> Callable[[], None]:
        """Calls back with the incarnation of each peer that is lost and why, at once and on the
        control thread, which must not be kept. What is returned ends that."""
        self._watchers.append(callback)

        def end() -> None:
            with contextlib.suppress(ValueError):
                self._watchers.remove(callback)

        return end

    # ----------------------------------------------------------------------------------- mailboxes
    def mailbox(self, id: bytes) -> Mailbox:  # noqa: A002
        """Opens the mailbox of a communicator: from now on what is said to it is kept.

        Raises InvalidUse while there is one of that id.
        """
        if len(id) != ID_BYTES:
            raise InvalidUse(f"the id of a communicator has {ID_BYTES} bytes, not {len(id)}")
        with self._lock:
            if self._stop.is_set():
                raise InvalidUse("the engine of these communicators is closed")
            if id in self._mailboxes:
                raise InvalidUse("this engine has a communicator of that id already")
            made = self._mailboxes[id] = Mailbox(self, id)
            if self._thread is None:
                target, name = self._look, "transport-collectives"
                self._thread = threading.Thread(target=target, name=name, daemon=True)
                self._thread.start()
        return made

    def close(self) -> None:
        """Ends all mailboxes, and closes the engine where the room made it. Idempotent."""
        self._stop.set()
        with contextlib.suppress(ValueError):
            self._core.on_lost.remove(self._lost)
        for box in list(self._mailboxes.values()):
            box.end(InvalidUse("the engine of these communicators is closed"))
        self._region.close()
        if self._owned:
            self.engine.close()

    # -------------------------------------------------------------------------------------- inside
    def _lost(self, record: PeerRecord) -> None:
        error = record.error or PeerLost("the peer is lost", peer=record.name)
        for watcher in list(self._watchers):
            watcher(record.incarnation, error)

    def _take(self, timeout: float) -> None:
        """Delivers all that has come; waits for the first of it. By one thread at a time."""
        notes = self.engine.notifications()
        self._looked = time.monotonic()
        try:
            note = notes.wait(timeout) if timeout > 0 else notes.poll()
        except TimeoutError:
            return
        while note is not None:
            if note.peer is not None:
                self._deliver(note.peer.incarnation, note.payload)
            note = notes.poll()

    def _deliver(self, peer: bytes, data: bytes) -> None:
        box = self._mailboxes.get(data[:ID_BYTES])
        if box is not None:  # else it is of a communicator that is closed, or of none
            box.put(Note(peer, data[ID_BYTES:]))

    def _lead(self, timeout: float) -> None:
        try:
            self._take(timeout)
        finally:
            with self._lock:
                self._leading = False
                heir = next((box for box in self._mailboxes.values() if box.waiting), None)
                if heir is not None:
                    heir.wakes.notify()

    def _look(self) -> None:
        """While nobody waits."""
        while not self._stop.wait(_IDLE):
            with self._lock:
                if self._leading or time.monotonic() < self._looked + _IDLE:
                    continue
                self._leading = True
            try:
                self._lead(0.0)
            except InvalidUse:  # the engine is closed
                return


class Mailbox(Closing):
    """What is said to one communicator, in the order in which it came from each peer."""

    def __init__(self, hub: Hub, id: bytes) -> None:  # noqa: A002
        self.id = id
        self.waiting = 0
        self.wakes = threading.Condition(hub._lock)
        self._hub = hub
        self._unread: deque[Note] = deque()
        self._error: TransportError | None = None

    @property
    def unread(self) -> bool:
        """Whether `wait` would return, or raise, at once. What has come to the engine alone is here
        within 40 ms, or once somebody waits."""
        return bool(self._unread) or self._error is not None

    def wait(self, timeout: float) -> Note | None:
        """The oldest unread message; None after `timeout` seconds. By any thread.

        Raises what `end` was given.
        """
        until = time.monotonic() + timeout
        hub = self._hub
        while True:
            with hub._lock:
                if self._error is not None:
                    raise self._error.again()
                if self._unread:
                    return self._unread.popleft()
                left = until - time.monotonic()
                if left <= 0 and (hub._leading or timeout > 0):
                    return None
                if hub._leading:
                    self.waiting += 1
                    try:
                        self.wakes.wait(min(left, _SLICE))
                    finally:
                        self.waiting -= 1
                    continue
                hub._leading = True
            hub._lead(min(left, _SLICE))
            if timeout <= 0:
                return self._unread.popleft() if self._unread else None

    def put(self, note: Note) -> None:
        """For the hub. A peer that floods it ends it."""
        with self._hub._lock:
            if len(self._unread) >= _MAX_UNREAD:
                self._error = PeerError("peers have said too much to this communicator")
            else:
                self._unread.append(note)
            if self.waiting:
                self.wakes.notify()

    def end(self, error: TransportError) -> None:
        """Whoever waits, now or later, gets this error; what was said is dropped. The first counts.

        Whoever waits notices within 20 ms.
        """
        with self._hub._lock:
            self._error = self._error or error
            self._unread.clear()
            self.wakes.notify_all()

    def close(self) -> None:
        """Nothing is kept for it any more. Idempotent."""
        with self._hub._lock:
            if self._hub._mailboxes.get(self.id) is self:
                del self._hub._mailboxes[self.id]
        self.end(InvalidUse("this communicator is closed"))


# -------------------------------------------------------------------------------------- the process
_lock = threading.Lock()
_options: dict[str, Any] = {}
_here: Hub | None = None
_hubs: dict[bytes, Hub] = {}  # of engines that users gave, by incarnation


def configure(**options: Any) -> None:
    """What the room's engine of this process is made with. Raises InvalidUse once there is one."""
    with _lock:
        if _here is not None and not _here.engine.closed:
            raise InvalidUse("the engine for communicators is open already")
        _options.clear()
        _options.update(options)


def here(**defaults: Any) -> Hub:
    """Of this process; made, with its engine, at its first use. `defaults` are engine arguments
    that `configure` did not give."""
    global _here
    with _lock:
        if _here is None or _here.engine.closed:
            _here = Hub(Engine(**{**defaults, **_options}), owned=True)
        return _here


def of(engine: Engine) -> Hub:
    """The hub of an engine that the user gives: its notifications are the hub's until it is closed.

    Both are kept until then.
    """
    if not isinstance(engine, Engine):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidUse(f"engine is a transport.Engine, not {engine!r:.80}")
    with _lock:
        if _here is not None and _here.engine is engine:
            return _here
        for key in [key for key, hub in _hubs.items() if hub.engine.closed]:
            _hubs.pop(key).close()
        found = _hubs.get(engine.incarnation)
        if found is None:
            found = _hubs[engine.incarnation] = Hub(engine)
        return found


def close() -> None:
    """Closes the room's engine, where there is one; the next use makes another. Idempotent."""
    global _here
    with _lock:
        found, _here = _here, None
    if found is not None:
        found.close()


def _after_fork_in_child() -> None:
    global _here, _lock
    _here, _lock = None, threading.Lock()
    _hubs.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
