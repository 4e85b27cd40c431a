"""The one engine of this process that moves what calls have: made when it is first needed.

May import leases, reach, the engine, control's addresses, memory, config, errors and types. A
thread of low rate hears what holders of leases say, and makes rooms.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from transport.config import Settings
from transport.control.address import TcpAddress
from transport.engine.batch import Read
from transport.engine.engine import Engine
from transport.errors import InvalidUse, TransportError
from transport.memory.host import view
from transport.mesh import reach
from transport.mesh.leases import Leases, Notice, Word, notices
from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from transport.engine.grant import Grant
    from transport.engine.transfer import Transfer
    from transport.memory.remote import RemoteRegion
    from transport.types import Access

logger = logging.getLogger(__name__)

_BUSY, _IDLE = 0.05, 1.0  # seconds between looks at what holders say, with leases and without
_TACT = 1e-3  # seconds in which an answer gets to who waits for it, and may need this processor
_PATIENCE = 5.0  # seconds for an owner to hear a notice


class Ticket(NamedTuple):
    """What names a lease elsewhere: `door` is a region of its owner that notices go to."""

    token: bytes
    door: RemoteRegion


class Tensors(Closing):
    """The engine, the leases of what was lent here, and what this process holds of others'."""

    def __init__(self, hosts: tuple[str, ...] = (), **options: Any) -> None:
        """`options` are the engine's; `hosts`: what it was told to be reached by."""
        self.hosts = hosts
        self.settings: Settings = options.get("settings") or Settings.from_env()
        self.engine = Engine(**options)
        self.leases = Leases(self.settings.mesh_lease)
        self._door_memory = bytearray(1)
        self._door = self.engine.register(self._door_memory, access="read")
        self._dropped: deque[tuple[Ticket, Transfer | None]] = deque()  # by finalizers
        self._holds = 0  # of which this process has not let go
        self._errands: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="transport-leases", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------ the owner
    def lend(self, things: Iterable[Any]) -> Grant:
        """Peers may read these until the grant is closed."""
        return self.engine.grant(things, access="read")

    def copies(self, things: Sequence[Any]) -> list[Any]:
        """The same bytes in new pool memory, which processes on this host read by mapping it."""
        blocks = [self.engine.empty(thing.nbytes, "uint8", access="read") for thing in things]
        with self.lend(things) as grant:
            reads = [Read(at.bytes(), block) for at, block in zip(grant.handles, blocks)]
            self.engine.submit(reads).wait()
        return blocks

    def access_of(self, thing: Any) -> Access | None:
        """What pool memory here was made for; None where it is not the pool's."""
        return self.engine._core.pool.access_at(view(thing).address)

    def lease(self, thing: Any, copies: int) -> tuple[RemoteRegion, Ticket]:
        """Memory that is on its way to so many holders; it is lent until the last one lets go.

        Raises InvalidUse for elements that have no name: a copy would not be what this is.
        """
        grant = self.lend([thing])
        handle = grant.handles[0]
        if handle.dtype is None:
            grant.close()
            raise InvalidUse(f'no keep="remote" for elements of {thing.dtype}: view them as uint8')
        lease = self.leases.lend(grant, copies)
        self._wake.set()
        return handle, Ticket(lease.token, self._door.remote())

    # ----------------------------------------------------------------------------------- the holder
    def take(self, tickets: Sequence[Ticket]) -> list[Hold]:
        """This process has them now, each until its Hold is dropped."""
        by_owner: dict[RemoteRegion, list[Ticket]] = {}
        for ticket in tickets:
            by_owner.setdefault(ticket.door, []).append(ticket)
        held: dict[Ticket, Hold] = {}
        for door, mine in by_owner.items():
            by_token = {ticket.token: ticket for ticket in mine}
            for notice in notices(Word.TOOK, by_token):
                said = self._say(door, notice)
                held.update((t, Hold(self, t, said)) for t in map(by_token.get, notice.tokens) if t)
        self._wake.set()
        return [held[ticket] for ticket in tickets]

    def pass_on(self, tickets: Iterable[Ticket], copies: int) -> None:
        """They are on their way from here to others; returns once their owners know."""
        by_owner: dict[RemoteRegion, list[bytes]] = {}
        for ticket in tickets:
            by_owner.setdefault(ticket.door, []).append(ticket.token)
        said = [
            self._say(door, notice)
            for door, tokens in by_owner.items()
            for notice in notices(Word.PASSED, tokens, copies)
        ]
        for transfer in said:
            _settle(transfer)

    def drop(self, ticket: Ticket, said: Transfer | None) -> None:
        """For a finalizer: only remembers it."""
        self._dropped.append((ticket, said))

    def later(self, action: Callable[[], None]) -> None:
        """Soon, on a thread that may wait for the engine. What it raises is logged."""
        self._errands.append(action)
        self._wake.set()

    # --------------------------------------------------------------------------------------- inside
    def close(self) -> None:
        """Takes back what is lent. Idempotent."""
        self._closed = True
        self._wake.set()
        self.leases.close()
        self.engine.close()

    def _say(self, door: RemoteRegion, notice: Notice) -> Transfer | None:
        """A read of nothing, with a notification; None where the owner is this process."""
        if door.incarnation == self.engine.incarnation:
            self.leases.hear(notice, door.incarnation)
            return None
        nothing = Read(door.bytes(0, 0), bytearray(0))
        return self.engine.submit([nothing], notify=notice.encode(), deadline=_PATIENCE)

    def _listen(self) -> None:
        while not self._closed:
            self._wake.wait(_BUSY if len(self.leases) or self._holds else _IDLE)
            self._wake.clear()
            self._run_errands()
            try:
                self._hear_all()
                self._let_go_all()
                alive = [peer.incarnation for peer in self.engine.peers]
                self.leases.sweep([*alive, self.engine.incarnation])
            except InvalidUse:  # the engine is closed
                return

    def _run_errands(self) -> None:
        if self._errands:
            time.sleep(_TACT)
        while self._errands:
            try:
                self._errands.popleft()()
            except Exception:
                logger.exception("an errand of the engine for calls failed")

    def _hear_all(self) -> None:
        notes = self.engine.notifications()
        while (found := notes.poll()) is not None:
            with contextlib.suppress(InvalidUse):  # what says nothing is not listened to
                notice = Notice.decode(found.payload)
                self.leases.hear(notice, None if found.peer is None else found.peer.incarnation)

    def _let_go_all(self) -> None:
        by_owner: dict[RemoteRegion, list[bytes]] = {}
        while self._dropped:
            ticket, said = self._dropped.popleft()
            _settle(said)
            self._holds -= 1
            by_owner.setdefault(ticket.door, []).append(ticket.token)
        for door, tokens in by_owner.items():
            for notice in notices(Word.LET_GO, tokens):
                with contextlib.suppress(TransportError):
                    self._say(door, notice)


class Hold:
    """That this process has a lease. Its death lets go of it."""

    __slots__ = ("_said", "_tensors", "ticket")

    def __init__(self, tensors: Tensors, ticket: Ticket, said: Transfer | None) -> None:
        self.ticket = ticket
        self._said = said  # the notice that it was taken
        self._tensors = tensors
        tensors._holds += 1

    def __del__(self) -> None:
        tensors = getattr(self, "_tensors", None)  # Ctrl-C may have come before
        if tensors is not None:
            tensors.drop(self.ticket, self._said)


def _settle(said: Transfer | None) -> None:
    """Waits until the owner has heard, or never will: whoever uses the memory finds that out."""
    if said is not None:
        with contextlib.suppress(TransportError, TimeoutError):
            said.wait(_PATIENCE)


_lock = threading.Lock()
_options: dict[str, Any] = {}
_here: Tensors | None = None
_before: list[Tensors] = []  # that other hosts could not reach


def configure(**options: Any) -> None:
    """What the engine of this process is made with. Raises InvalidUse once there is one."""
    with _lock:
        if _here is not None and not _here.engine.closed:
            raise InvalidUse("the engine for calls is open already")
        _options.clear()
        _options.update(options)


def here() -> Tensors:
    """Of this process; made, with its engine, at its first use.

    Where a link to another host came later than its engine, which that host cannot reach, there is
    another from then on; what was lent before stays with the first.
    """
    global _here
    found = _here
    if found is not None and not found.engine.closed and found.hosts == reach.hosts():
        return found
    with _lock:
        found, hosts = _here, reach.hosts()
        if found is None or found.engine.closed or found.hosts != hosts:
            listen = [str(TcpAddress(host, 0)) for host in hosts] or None
            _here = Tensors(hosts, **{"listen": listen, **_options})
            if found is not None:
                _before.append(found)
        assert _here is not None
        return _here


def is_open() -> bool:
    """Whether this process has needed its engine yet."""
    return _here is not None


def close() -> None:
    """Closes the engine, where there is one; the next use makes another. Idempotent."""
    global _here
    with _lock:
        found = [*_before, *([] if _here is None else [_here])]
        _before.clear()
        _here = None
    for each in found:
        each.close()


def _after_fork_in_child() -> None:
    global _here, _lock
    _here, _lock = None, threading.Lock()
    _before.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
