"""The addresses of one peer, tried almost at once: a dead one costs a moment, not the time limit.

May import address, handshake, messages, patience, records and errors. As RFC 8305 ("Happy Eyeballs
Version 2", section 5) does with the addresses of a name: each attempt has a head start of 250 ms
over the next, which begins at once when one fails. The first whose peer answers leads: it alone
goes on to the proof, for one link is wanted, and the others step back. They come in again if it
fails. Whatever is under way when one has won is cancelled, and its sockets are closed.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import math
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from transport.control import messages
from transport.control.address import is_unix
from transport.control.handshake import Refused, Stale
from transport.control.patience import within
from transport.control.records import status_of
from transport.errors import PeerLost, PeerRefused, Status, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from transport.control.address import Address

    Lead: TypeAlias = Callable[[], None]
    Attempt: TypeAlias = Callable[[Address, Lead], Coroutine[Any, Any, None]]

_T = TypeVar("_T")

HEAD_START = 0.25  # seconds; the Connection Attempt Delay of RFC 8305


class Outrun(Exception):
    """The peer has answered another attempt before."""


class Race:
    """One round over the addresses, in the order of preference, until `end` (time of the loop).

    `attempt(address, lead)` makes the link or raises. It calls `lead` when the peer has answered;
    what that raises ends the attempt.
    """

    def __init__(self, addresses: Iterable[Address], attempt: Attempt, end: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting = collections.deque(dict.fromkeys(addresses))
        self._attempt = attempt
        self._end = end
        self._running: dict[asyncio.Task[None], Address] = {}
        self._leader: Address | None = None
        self._next = 0.0  # when the next one may begin beside those that are under way
        self._errors: list[TransportError] = []

    async def run(self, name: str) -> None:
        """Returns when the link is made, or one that the peer makes is to come.

        Raises the most telling error of all addresses; `name` is the peer's.
        """
        try:
            while self._waiting or self._running:
                self._begin()
                if await self._step():
                    return
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            self._running.clear()  # their errors hold frames, and these this race
        raise self._failure(name)

    def _begin(self) -> None:
        now = self._loop.time()
        if not self._waiting or self._leader is not None or (self._running and now < self._next):
            return
        address = self._waiting.popleft()
        lead = functools.partial(self._lead, address)
        share = (self._end - now) / (len(self._waiting) + 1)
        task = self._loop.create_task(bounded(self._attempt(address, lead), share))
        self._running[task] = address
        # A unix socket is no network that swallows packets: what follows it is worse, not faster.
        self._next = math.inf if is_unix(address) else now + HEAD_START

    def _lead(self, address: Address) -> None:
        if self._leader not in (None, address):
            raise Outrun
        self._leader = address

    def _failure(self, name: str) -> TransportError:
        errors, self._errors = self._errors, []
        return _most_telling(errors, name)

    async def _step(self) -> bool:
        """Until an attempt ends or the next may begin; true when it is decided."""
        wait = None
        if self._waiting and self._leader is None and self._next < math.inf:
            wait = max(self._next - self._loop.time(), 0.0)
        running = tuple(self._running)
        done, _ = await asyncio.wait(running, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        return any(self._ended(task) for task in running if task in done)

    def _ended(self, task: asyncio.Task[None]) -> bool:
        address = self._running.pop(task)
        if self._leader == address:
            self._leader = None
        self._next = self._loop.time()
        error = task.exception()  # not raised: it would hold this frame, and that the task
        if error is None or (isinstance(error, Refused) and error.code == messages.DUPLICATE):
            return True
        if isinstance(error, Outrun):
            self._waiting.appendleft(address)
        elif isinstance(error, TransportError):
            self._errors.append(placed(error, address))
        else:
            raise error
        return False


async def bounded(coroutine: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Its result. Raises PeerLost when that is not there in time."""
    try:
        return await within(max(seconds, 0.001), coroutine)
    except asyncio.TimeoutError:
        raise PeerLost(f"no answer within {seconds:.3g} s") from None


def placed(error: TransportError, address: Address) -> TransportError:
    """The same error, saying where."""
    if isinstance(error, Stale):
        return Stale(f"the engine at {address} is another incarnation: the owner restarted")
    kind = type(error) if not isinstance(error, Refused) else PeerRefused
    return kind(f"cannot connect to {address}: {error}")


# Of several addresses' errors the one that says most is the first of the highest rank.
_RANKS = (Status.PEER_LOST, Status.PEER_REFUSED, Status.VERSION, Status.STALE)


def _most_telling(errors: list[TransportError], name: str) -> TransportError:
    if not errors:
        return PeerLost(f"{name} has no address to connect to and has not connected itself")
    return max(errors, key=lambda error: _RANKS.index(status_of(error)))
