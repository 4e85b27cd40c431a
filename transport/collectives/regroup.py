"""How the members of a generation who are left agree on the next one, also when more of them die
meanwhile. May import hub, health, joining, group, card, errors.

The lowest rank that is not lost coordinates: it collects the cards of all others that are not,
gives out the roster, and says that it is decided once all of them have it. A coordinator that dies
is followed by the next lowest rank; before it takes over, everybody asks everybody whether the last
one's roster was decided. Who has answered "no" never takes it for decided later, so that all who
live go the same way. Members that are cut off from each other without being dead go on apart.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from transport.collectives import card as c
from transport.collectives.group import Group
from transport.collectives.joining import (
    Clock,
    connect,
    place_of,
    publish,
    ranks_of,
    read_roster,
)
from transport.collectives.meeting import Meeting, await_meeting
from transport.errors import (
    DeadlineExceeded,
    InvalidUse,
    PeerError,
    PeerLost,
    RankLost,
    TransportError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transport.collectives.health import Health
    from transport.collectives.hub import Hub, HubPeer, Mailbox

_SLICE = 0.05  # seconds between looks at who is lost
_ASKING = 2.0  # seconds for members to say what they have seen decided
GROWING = "grow/"  # before the name: where newcomers ask


class _CoordinatorLostError(Exception):
    """The next one takes over."""


class Regroup:
    """What all ranks begin as their `attempt` of this generation; `kept` goes on this one's card.
    `newcomers` are processes that come in."""

    def __init__(
        self,
        group: Group,
        health: Health,
        clock: Clock,
        *,
        attempt: int,
        rules: Sequence[c.Rule] = (),
        kept: int = 0,
        newcomers: int = 0,
    ) -> None:
        self._group = group
        self._health = health
        self._attempt = attempt
        self._rules = rules
        self._kept = kept
        self._clock = clock
        self._newcomers = newcomers
        self._roster: list[c.Card] = []
        self._mailbox: Mailbox | None = None
        self._meeting: Meeting | None = None

    def run(self) -> Group:
        """The next generation. Raises DeadlineExceeded, which names who did not take part."""
        while True:
            coordinator = min(set(range(self._group.size)) - self._gone())
            try:
                if coordinator == self._group.rank:
                    self._lead(coordinator)
                else:
                    self._follow(coordinator)
            except (_CoordinatorLostError, PeerLost):
                self._health.wait_lost(coordinator, _ASKING)
                if not self._was_decided(coordinator):
                    self._forget()
                    continue
            except BaseException:
                self._forget()
                raise
            return self._made()

    # -------------------------------------------------------------------------------- coordinating
    def _lead(self, me: int) -> None:
        group, hub = self._group, self._group.hub
        place = self._place(me)
        hub.hall.open(place)
        meeting = self._meeting = Meeting(hub, None, place)
        mailbox = self._mailbox = hub.mailbox(os.urandom(c.ID_BYTES))
        if self._newcomers:
            _open_door(group, place, self._newcomers, self._clock)
        try:
            opening = c.Opening(c.PROTOCOL, mailbox.id, 1, list(self._rules))
            meeting.set("opening", c.encode(opening), self._clock.left)
            cards = [self._card(me)]
            cards.extend(self._each("card", "took no part in it", decoded=True))
            cards.sort(key=lambda card: card.former)
            new = _newcomers(meeting, "card", self._newcomers, self._clock)
            cards.extend(c.decode(each, c.Card) for each in new)
            self._roster = [replace(card, rank=rank) for rank, card in enumerate(cards)]
            publish(meeting, mailbox.id, self._roster, self._clock)
            self._each("has", "did not take the roster", decoded=False)
            _newcomers(meeting, "has", self._newcomers, self._clock)
            if not hub.gossip.decide(place, True):
                raise PeerError("the others have gone on without this rank, as if it were lost")
            meeting.set("decided", b"1", self._clock.left)
        except TransportError as error:
            failure = c.Roster(c.PROTOCOL, mailbox.id, [], 0, f"regrouping failed: {error}"[:1000])
            meeting.set("roster/0", c.encode(failure), 1.0)
            hub.hall.give_up(place)
            raise
        finally:
            hub.hall.shut(GROWING + group.name)

    def _each(self, what: str, otherwise: str, *, decoded: bool) -> list[c.Card]:
        """What all members that are not lost hand in; who is lost meanwhile is left out."""
        assert self._meeting is not None
        found: dict[int, c.Card | None] = {}
        while True:
            missing = set(range(self._group.size)) - self._gone() - found.keys()
            missing.discard(self._group.rank)
            if not missing:
                return [card for rank, card in found.items() if card and rank not in self._gone()]
            if self._clock.passed:
                raise DeadlineExceeded(
                    f"{ranks_of(sorted(missing))} of {self._group.name!r}"
                    f" {otherwise} within {self._clock.limit:.3g} s"
                )
            rank = min(missing)
            try:
                value = self._meeting.get(f"{what}/{rank}", min(_SLICE, self._clock.left))
            except DeadlineExceeded:
                continue
            found[rank] = c.decode(value, c.Card) if decoded else None

    # ------------------------------------------------------------------------------------ following
    def _follow(self, coordinator: int) -> None:
        group, hub = self._group, self._group.hub
        peer = group.peers[coordinator].again()
        meeting = self._meeting = Meeting(hub, peer, self._place(coordinator))

        def ask(what: Callable[[], bytes | None]) -> bytes:
            return self._until(coordinator, what)

        opening = c.decode(ask(lambda: meeting.peek("opening", _ASKING)), c.Opening)
        self._mailbox = hub.mailbox(opening.id)
        card = c.encode(self._card(group.rank))
        ask(lambda: meeting.swap(f"card/{group.rank}", b"", card, _ASKING))
        ask(lambda: meeting.get("roster/0", _SLICE))
        self._roster = read_roster(meeting, opening.id, self._clock)
        ask(lambda: _said(meeting, f"has/{group.rank}"))
        ask(lambda: meeting.get("decided", _SLICE))
        if not hub.gossip.decide(self._place(coordinator), True):
            raise _CoordinatorLostError

    def _until(self, coordinator: int, what: Callable[[], bytes | None]) -> bytes:
        """What the coordinator answers, once it does."""
        while True:
            if coordinator in self._gone():
                raise _CoordinatorLostError
            if self._clock.passed:
                raise DeadlineExceeded(
                    f"rank {coordinator}, which regroups {self._group.name!r}, did not do so"
                    f" within {self._clock.limit:.3g} s; do all ranks call this?"
                )
            try:
                answer = what()
            except PeerLost:
                raise
            except DeadlineExceeded:
                continue
            except PeerError:  # it is not that far yet
                answer = None
            if answer is not None:
                return answer
            time.sleep(0.005)

    def _was_decided(self, coordinator: int) -> bool:
        group = self._group
        living = group.records(self._gone() | {group.rank})
        gossip, place = group.hub.gossip, self._place(coordinator)
        if not gossip.any_decided(place, living.values(), _ASKING):
            return gossip.decide(place, False)
        if not self._roster:
            raise PeerError(f"the others of {group.name!r} have gone on without this rank")
        return True

    # --------------------------------------------------------------------------------------- common
    def _place(self, coordinator: int) -> str:
        group = self._group
        name = f"{coordinator}/{self._attempt}/{group.id.hex()}/{group.name}"
        return place_of(name, group.generation + 1)

    def _gone(self) -> set[int]:
        return set(self._health.lost) | self._health.left

    def _card(self, rank: int) -> c.Card:
        hub = self._group.hub
        return c.mine(rank, hub.door, hub.engine.addresses, kept=self._kept, former=rank)

    def _forget(self) -> None:
        if self._mailbox is not None:
            self._mailbox.close()
        self._mailbox, self._roster = None, []

    def _made(self) -> Group:
        assert self._mailbox is not None
        assert self._meeting is not None
        mine = {card.nonce for card in self._roster if card.former == self._group.rank}
        if not mine:
            self._forget()
            raise RankLost("the others have taken this rank for lost", ranks=(self._group.rank,))
        rank = next(card.rank for card in self._roster if card.nonce in mine)
        group = self._group
        former = dict(enumerate(group.peers))
        peers = tuple(
            former[card.former].again() if card.former >= 0 else group.hub.peer_at(card.region)
            for card in self._roster
        )
        return Group(
            group.name,
            group.generation + 1,
            self._mailbox.id,
            rank,
            len(self._roster),
            group.hub,
            self._mailbox,
            peers,
            tuple(self._roster),
            self._meeting,
        )


def _said(meeting: Meeting, key: str) -> bytes:
    meeting.set(key, b"1", _ASKING)
    return b"1"


# -------------------------------------------------------------------------------------- newcomers
def enter(hub: Hub, zero: HubPeer, name: str, clock: Clock) -> tuple[Group, c.Opening]:
    """A rank of the next generation of the group whose rank 0 that is, once it grows.

    Raises DeadlineExceeded, PeerLost; InvalidUse where enough others have come.
    """
    door = Meeting(hub, zero, GROWING + name)
    await_meeting(door, clock.left)
    ticket = c.decode(door.get("ticket", clock.left), c.Ticket)
    number = door.add("came", 1, clock.left) - 1
    if number >= ticket.newcomers:
        raise InvalidUse(f"{name!r} grows by {ticket.newcomers}, and as many have come")
    meeting = Meeting(hub, zero, ticket.place)
    opening = c.decode(meeting.get("opening", clock.left), c.Opening)
    mailbox = hub.mailbox(opening.id)
    try:
        card = c.mine(0, hub.door, hub.engine.addresses)
        meeting.set(f"card/new/{number}", c.encode(card), clock.left)
        cards = read_roster(meeting, opening.id, clock)
        mine = [each.rank for each in cards if each.nonce == card.nonce]
        if len(mine) != 1:
            raise PeerError("the roster does not have this rank once")
        group = connect(hub, name, ticket.generation, mine[0], cards, mailbox, meeting, clock)
        meeting.set(f"has/new/{number}", b"1", clock.left)
        meeting.get("decided", clock.left)
    except BaseException:
        mailbox.close()
        raise
    return group, opening


def _open_door(group: Group, place: str, newcomers: int, clock: Clock) -> None:
    hub, where = group.hub, GROWING + group.name
    hub.hall.open(where)
    ticket = c.Ticket(c.PROTOCOL, place, group.generation + 1, newcomers)
    Meeting(hub, None, where).set("ticket", c.encode(ticket), clock.left)


def _newcomers(meeting: Meeting, what: str, count: int, clock: Clock) -> list[bytes]:
    """What each of them hands in."""
    found: list[bytes] = []
    for number in range(count):
        try:
            found.append(meeting.get(f"{what}/new/{number}", clock.left))
        except DeadlineExceeded:
            text = f"{number} of {count} newcomers came within {clock.limit:.3g} s"
            raise DeadlineExceeded(text) from None
    return found
