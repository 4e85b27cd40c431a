"""Who may still read memory that was lent: the side of its owner, which frees it at the end.

May import errors and types. Pure: it sends nothing and asks no clock but the one that it is given.
A lease lives while it is under way to a receiver and not too old, or while a process that took it
is there and has not let go.
"""

from __future__ import annotations

import enum
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from transport.errors import InvalidUse
from transport.types import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from transport.types import Closing

TOKEN_BYTES = 8
MOST_TOKENS = 90
"""Of one notice: a notification has 1024 bytes."""

_MOST_COPIES = 1 << 20


class Word(enum.IntEnum):
    """What a holder says of a lease."""

    TOOK = 1  # I have it now, and shall let go of it
    LET_GO = 2
    PASSED = 3  # it is under way from me to others


class Notice(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One notification to an owner. `copies` is how many receivers the leases are on the way to."""

    word: Word
    tokens: list[bytes]
    copies: int = 1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Notice:
        """Raises InvalidUse for what is none."""
        try:
            notice = msgspec.msgpack.decode(data, type=cls)
        except UNDECODABLE as error:
            raise InvalidUse(f"this is no notice of a lease: {error}") from None
        sizes = {len(token) for token in notice.tokens}
        if sizes - {TOKEN_BYTES} or not 0 < notice.copies <= _MOST_COPIES:
            raise InvalidUse("this is no notice of a lease: its tokens or copies cannot be")
        return notice


def notices(word: Word, tokens: Iterable[bytes], copies: int = 1) -> Iterator[Notice]:
    """As few as hold all tokens."""
    rest = list(tokens)
    for start in range(0, len(rest), MOST_TOKENS):
        yield Notice(word, rest[start : start + MOST_TOKENS], copies)


@dataclass(eq=False)
class Lease:
    """Memory of this process that others may read. Made by `Leases.lend`."""

    token: bytes
    grant: Closing
    under_way: int  # copies that were sent and not yet heard of
    expires: float  # of those under way
    holders: dict[bytes, int] = field(default_factory=dict)  # by incarnation of their engine

    def is_over(self, now: float) -> bool:
        return not self.holders and (self.under_way <= 0 or now >= self.expires)


class Leases:
    """All leases of one process. Thread-safe. Memory is given back outside its lock."""

    def __init__(self, lifetime: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lifetime = lifetime  # seconds that a lease may be under way
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[bytes, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def lend(self, grant: Closing, copies: int = 1, lifetime: float | None = None) -> Lease:
        """A lease that is under way to so many receivers, for `lifetime` seconds at most."""
        limit = self._lifetime if lifetime is None else lifetime
        lease = Lease(os.urandom(TOKEN_BYTES), grant, copies, self._clock() + limit)
        with self._lock:
            self._leases[lease.token] = lease
        return lease

    def hear(self, notice: Notice, holder: bytes | None) -> None:
        """What a process says whose engine has this incarnation; None: it has gone since."""
        over: list[Lease] = []
        now = self._clock()
        with self._lock:
            for token in notice.tokens:
                lease = self._leases.get(token)
                if lease is None:  # it has expired, or was let go of by mistake: nothing is there
                    continue
                self._apply(lease, notice, holder, now)
                if lease.is_over(now):
                    del self._leases[token]
                    over.append(lease)
        _free(over)

    def sweep(self, alive: Iterable[bytes]) -> None:
        """Frees what has expired, and what only processes had that are no more."""
        living, now = frozenset(alive), self._clock()
        with self._lock:
            for lease in self._leases.values():
                for gone in lease.holders.keys() - living:
                    del lease.holders[gone]
            over = [lease for lease in self._leases.values() if lease.is_over(now)]
            for lease in over:
                del self._leases[lease.token]
        _free(over)

    def close(self) -> None:
        """Takes all of it back."""
        with self._lock:
            over = list(self._leases.values())
            self._leases.clear()
        _free(over)

    def _apply(self, lease: Lease, notice: Notice, holder: bytes | None, now: float) -> None:
        if notice.word is Word.PASSED:
            lease.under_way += notice.copies
            lease.expires = max(lease.expires, now + self._lifetime)
        elif notice.word is Word.LET_GO:
            _count(lease.holders, holder, -1)
        else:
            # It may become negative: more may have taken it than were told of.
            lease.under_way -= 1
            _count(lease.holders, holder, 1)


def _count(holders: dict[bytes, int], holder: bytes | None, change: int) -> None:
    if holder is None:
        return
    left = holders.get(holder, 0) + change
    if left > 0:
        holders[holder] = left
    else:
        holders.pop(holder, None)


def _free(leases: Iterable[Lease]) -> None:
    for lease in leases:
        lease.grant.close()
