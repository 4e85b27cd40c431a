"""Makes links: the outbound side with its retries, and the inbound side once it has proven itself.

May import everything else of control but plane. Everything runs on the control thread. One record
is brought up by whichever side's connection wins (arbiter); a record that nobody can bring up
within `connect_timeout` is lost with the most telling error of its addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from transport.control import handshake, messages, streams
from transport.control.address import parse
from transport.control.arbiter import Situation, Verdict, judge
from transport.control.doors import dial
from transport.control.handshake import Joins, Oneself, Refused
from transport.control.negotiation import Negotiation
from transport.control.patience import within
from transport.control.race import Race, bounded, placed
from transport.control.records import Contact, Inbound, PeerRecord, State, status_of
from transport.errors import InvalidUse, PeerLost, PeerRefused, Status, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from transport.control.address import Address
    from transport.control.border import Border
    from transport.control.channel import Channel
    from transport.control.guests import Guest
    from transport.control.handshake import Outcome, Party
    from transport.control.homes import Homes
    from transport.control.race import Lead
    from transport.control.records import Table
    from transport.control.streams import LinkKey
    from transport.providers.base import Endpoint
    from transport.types import LinkFacts

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

_SHM, _TCP = 0, 2  # enum tn_provider_id
_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.5  # between rounds that ended as duplicates


@dataclass(frozen=True)
class Surroundings:
    """What the connector works with and on."""

    party: Party
    table: Table
    border: Border
    endpoints: Mapping[str, Endpoint]
    absent: Mapping[str, str]
    homes: Homes
    connect_timeout: float
    came_up: Callable[[PeerRecord], None]
    lose: Callable[[PeerRecord, int, str], None]


class Connector:
    """One per engine."""

    def __init__(self, surroundings: Surroundings, loop: asyncio.AbstractEventLoop) -> None:
        self._s = surroundings
        self._loop = loop
        self._moments = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._links: weakref.WeakValueDictionary[bytes, PeerRecord] = weakref.WeakValueDictionary()
        self._own_hellos: set[bytes] = set()  # nonces by which we met ourselves
        self._prefer_unix = "shm" in surroundings.endpoints
        self._closing = False

    def moment(self) -> int:
        """A number that only grows: what came before what."""
        return next(self._moments)

    async def close(self) -> None:
        self._closing = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------- outbound
    def bring_up(self, record: PeerRecord) -> None:
        """Begins to connect, unless that is under way."""
        contact = record.contact
        if record.state is not State.CONNECTING or contact.bringing_up is not None or self._closing:
            return
        task = self._loop.create_task(self._bring_up(record))
        contact.bringing_up = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring_up(self, record: PeerRecord) -> None:
        try:
            await self._until_up(record, self._loop.time() + self._s.connect_timeout)
        except TransportError as error:
            self._s.lose(record, status_of(error), str(error))
        except Exception as error:
            logger.exception("connecting to %s failed", record.name)
            self._s.lose(record, Status.PEER_LOST, f"internal error: {error!r}")

    async def _until_up(self, record: PeerRecord, deadline: float) -> None:
        contact, pause = record.contact, _FIRST_PAUSE
        while record.state is State.CONNECTING:
            left = deadline - self._loop.time()
            if left <= 0:
                raise PeerLost(
                    f"{record.name} did not connect within {self._s.connect_timeout:g} s"
                )
            contact.changed.clear()
            if contact.inbound is None:
                await self._round(record, deadline)
            if record.state is State.CONNECTING:
                # An inbound connection is to come up. If it does not, look again.
                with contextlib.suppress(asyncio.TimeoutError):
                    await within(min(left, pause), contact.changed.wait())
                pause = min(2 * pause, _LAST_PAUSE)

    async def _round(self, record: PeerRecord, deadline: float) -> None:
        """Tries all addresses once, in a task of its own that an inbound connection may cancel.

        Returns when the record is up or an inbound connection is to come; raises what went wrong.
        """
        contact = record.contact
        attempt = self._loop.create_task(self._try_all(record, deadline))
        contact.attempt = attempt
        try:
            await asyncio.wait((attempt,))
        finally:
            contact.attempt = None
            if not attempt.done():
                attempt.cancel()
                await asyncio.gather(attempt, return_exceptions=True)
        try:
            if not attempt.cancelled():
                attempt.result()
        finally:
            del attempt  # what it raises holds this frame, which has the record

    async def _try_all(self, record: PeerRecord, deadline: float) -> None:
        addresses = self._s.homes.order(record.addresses, prefer_unix=self._prefer_unix)
        attempt = functools.partial(self._link, record)
        await Race(addresses, attempt, deadline).run(record.name)

    async def _link(self, record: PeerRecord, address: Address, lead: Lead) -> None:
        contact = record.contact
        negotiation = Negotiation(self._s.endpoints, self._s.absent)
        leads = False

        def challenged(peer: messages.Identity, facts: LinkFacts) -> None:
            # Where the peer is quick all of this runs in one step of the loop, and a cancellation
            # by an inbound connection that was accepted before it has not come through yet.
            if contact.inbound is not None or record.state is not State.CONNECTING:
                raise Refused(messages.DUPLICATE, "the peer's own connection is coming up")
            lead()
            nonlocal leads
            leads = contact.challenged = True

        channel = await dial(address)
        try:
            outcome = await handshake.initiate(
                channel,
                self._s.party,
                negotiation,
                wanted=record.incarnation,
                challenged=challenged,
            )
            self._establish(record, channel, negotiation, outcome, str(address))
        finally:
            contact.challenged = contact.challenged and not leads
            negotiation.close()
            channel.close()

    async def identify(self, address: Address, timeout: float) -> messages.Identity:
        """Who listens there, proven. Our own identity when it is this engine."""
        try:
            return await bounded(self._identify(address), timeout)
        except TransportError as error:
            raise placed(error, address) from None

    async def _identify(self, address: Address) -> messages.Identity:
        channel = await dial(address)
        try:
            return (await handshake.initiate(channel, self._s.party, None)).peer
        except Oneself as discovery:
            # Only our own reception could have read our nonce; others may claim our incarnation.
            if discovery.nonce not in self._own_hellos:
                raise PeerRefused("what answers there claims to be this very engine") from None
            self._own_hellos.discard(discovery.nonce)
            return self._s.party.identity
        finally:
            channel.close()

    # -------------------------------------------------------------------------------------- inbound
    async def serve(self, guest: Guest, proven: Callable[[], None]) -> None:
        """One inbound connection, start to end. Raises what the reception is to log."""
        try:
            await within(self._s.connect_timeout, self._serve(guest, proven))
        except asyncio.TimeoutError:
            raise PeerRefused(f"no proof within {self._s.connect_timeout:g} s") from None

    async def _serve(self, guest: Guest, proven: Callable[[], None]) -> None:
        negotiation = Negotiation(self._s.endpoints, self._s.absent)
        claims: list[tuple[PeerRecord, Inbound]] = []

        def decide(peer: messages.Identity, facts: LinkFacts) -> None:
            proven()
            claims.append(self._claim(peer, guest.came_at))

        try:
            outcome = await handshake.respond(guest.channel, self._s.party, negotiation, decide)
            for record, _ in claims:
                self._establish(record, guest.channel, negotiation, outcome, "")
        except Oneself as discovery:
            self._remember_own(discovery.nonce)
        except Joins as joining:
            await self._admit(guest, joining.join, proven)
        finally:
            negotiation.close()
            for record, inbound in claims:
                self._unclaim(record, inbound)

    def _claim(self, peer: messages.Identity, came_at: int) -> tuple[PeerRecord, Inbound]:
        if self._closing:
            raise Refused(messages.CLOSING, "this engine is being closed")
        verdict = judge(self._situation(peer, came_at))
        if verdict is Verdict.DUPLICATE:  # with no record in this frame, which what is raised holds
            raise Refused(messages.DUPLICATE, "another connection between these two is coming up")
        record = self._s.table.find(peer.incarnation)
        if verdict is Verdict.REPLACE and record is not None:
            self._s.lose(record, Status.PEER_LOST, "the peer had lost the connection and made anew")
        record, _ = self._s.table.obtain(peer.incarnation, ())
        record.addresses = record.addresses or readable(peer.addresses)
        return record, self._take_over(record.contact, came_at)

    def _situation(self, peer: messages.Identity, came_at: int) -> Situation:
        mine = self._s.party.identity.incarnation
        record = self._s.table.find(peer.incarnation)
        if record is None:
            return Situation(mine, peer.incarnation, came_at)
        contact = record.contact
        return Situation(
            mine,
            peer.incarnation,
            came_at,
            challenged=contact.challenged,
            link_at=contact.link_at,
            inbound_at=contact.inbound.came_at if contact.inbound else None,
        )

    def _take_over(self, contact: Contact, came_at: int) -> Inbound:
        """This connection is the one: gives up our own attempt and an earlier inbound one."""
        earlier, contact.inbound = contact.inbound, Inbound(came_at, asyncio.current_task())
        if earlier is not None and earlier.task is not None:
            earlier.task.cancel()
        if contact.attempt is not None:
            contact.attempt.cancel()
        return contact.inbound

    def _unclaim(self, record: PeerRecord, inbound: Inbound) -> None:
        contact = record.contact
        if contact.inbound is not inbound:
            return
        contact.inbound = None
        contact.changed.set()
        if record.state is not State.CONNECTING or contact.bringing_up is not None:
            return
        if record.wanted and not self._closing:
            self.bring_up(record)
        else:
            self._s.lose(record, Status.PEER_LOST, "the peer's connection failed half-way")

    def _remember_own(self, nonce: bytes) -> None:
        if len(self._own_hellos) >= messages.MAX_DESCRIPTORS:
            self._own_hellos.clear()  # left over by somebody who replays our hello
        self._own_hellos.add(nonce)

    # ---------------------------------------------------------------------------- further streams
    def widen(self, record: PeerRecord, count: int) -> None:
        """Opens so many more sockets of a link that this side has made, one after the other."""
        if self._closing or record.contact.key is None or not record.address:
            return
        task = self._loop.create_task(self._widen(record, record.contact.key, count))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _widen(self, record: PeerRecord, key: LinkKey, count: int) -> None:
        address = parse(record.address)
        for number in range(1, count + 1):
            try:
                coroutine = self._open_stream(record, address, key, number)
                await bounded(coroutine, self._s.connect_timeout)
            except TransportError as error:
                if record.state is State.UP:
                    missing = f"{record.name} has {count - number + 1} streams less than agreed"
                    logger.warning("%s: %s", missing, placed(error, address))
                return

    async def _open_stream(
        self, record: PeerRecord, address: Address, key: LinkKey, number: int
    ) -> None:
        channel = await dial(address)
        try:
            await streams.ask(channel, key, number)
            self._s.border.join(record.native, channel.detach())
        finally:
            channel.close()

    async def _admit(self, guest: Guest, join: messages.Join, proven: Callable[[], None]) -> None:
        record = self._links.get(join.link)
        up = record is not None and record.state is State.UP
        key = record.contact.key if record is not None and up else None
        try:
            streams.check(join, key, record.contact.last_stream if record is not None else 0)
        except Refused as refusal:
            await streams.refuse(guest.channel, refusal)
            raise
        assert record is not None
        assert key is not None
        proven()
        record.contact.last_stream = join.number
        await streams.accept(guest.channel, join, key)
        self._s.border.join(record.native, guest.channel.detach())

    # ----------------------------------------------------------------------------------------- both
    def _establish(
        self,
        record: PeerRecord,
        channel: Channel,
        negotiation: Negotiation,
        outcome: Outcome,
        address: str,
    ) -> None:
        """Hands the socket to C. No await in here: a cancellation comes before or after."""
        if record.state is not State.CONNECTING:
            record.check()
            raise PeerLost("another connection to this peer came up meanwhile", peer=record.name)
        unix = outcome.facts.is_unix
        attached = negotiation.attach(record.native)
        stream = "shm" if unix and self._prefer_unix else "tcp"
        record.name = messages.printable(outcome.peer.name) or record.name
        record.pid = outcome.facts.pid or outcome.peer.pid
        record.addresses = record.addresses or readable(outcome.peer.addresses)
        record.link, record.address = "unix" if unix else "tcp", address
        record.providers = tuple(name for name in self._s.endpoints if name in (*attached, stream))
        plain = {stream} if stream == "tcp" else set[str]()  # its stream is all that it has
        reasons = negotiation.reasons()
        missing = self._s.endpoints.keys() - {*attached, *plain}
        record.reasons = {name: why for name, why in reasons.items() if name in missing}
        provider = _SHM if stream == "shm" else _TCP
        try:
            depth = outcome.peer.notify_depth
            self._s.border.up(record.native, channel.detach(), provider, depth)
        except TransportError as error:
            self._s.lose(record, Status.PEER_LOST, f"the link could not be opened: {error}")
            if isinstance(error, InvalidUse):  # C knew before us that the peer is gone
                raise PeerLost(str(error), peer=record.name) from None
            raise
        record.contact.link_at = self.moment()
        if outcome.key is not None and not unix:
            record.contact.key = key = streams.LinkKey(outcome.key)
            self._links[key.name] = record
        self._s.came_up(record)


def readable(texts: Iterable[str]) -> tuple[Address, ...]:
    """A peer's addresses; what this release cannot read is left out."""
    read: list[Address] = []
    for text in texts:
        with contextlib.suppress(InvalidUse):
            read.append(parse(text))
    return tuple(read)
