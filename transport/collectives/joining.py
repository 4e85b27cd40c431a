"""How the ranks of one generation find each other. May import hub, meeting, group, card, errors.

Rank 0 serves the meeting: it says which id the group has, collects the cards of all ranks and
gives out the roster. Every rank opens its mailbox before it hands in its card, so that whoever has
the roster can talk to all; then it connects to all of them.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from transport.collectives import card as c
from transport.collectives.group import Group
from transport.collectives.meeting import Meeting, await_meeting
from transport.errors import DeadlineExceeded, InvalidUse, PeerError, PeerLost, TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.collectives.hub import Hub, HubPeer, Mailbox

_ROW = 64  # cards in one value of the roster
_PAUSE = 0.02  # seconds before the meeting is looked at again
_LOOK = 1.0  # seconds for one look at it
_OFTEN = 0.1  # seconds between looks of rank 0 at whether a rank does not fit
_MISFIT = "misfit"  # the key that says which


class Clock:
    """One deadline for many steps."""

    def __init__(self, seconds: float) -> None:
        self.limit = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(self._end - time.monotonic(), 0.001)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._end


def lead(
    hub: Hub, title: str, generation: int, size: int, rules: Sequence[c.Rule], clock: Clock
) -> Group:
    """For rank 0: the group, once all ranks have come. Raises DeadlineExceeded, which names who has
    not, and what connecting raises."""
    place = place_of(title, generation)
    hub.hall.open(place)
    meeting = Meeting(hub, None, place)
    mailbox = hub.mailbox(os.urandom(c.ID_BYTES))
    try:
        opening = c.Opening(c.PROTOCOL, mailbox.id, size, list(rules))
        meeting.set("opening", c.encode(opening), clock.left)
        cards = [c.mine(0, hub.door, hub.engine.addresses)]
        cards.extend(_collect(meeting, size, clock))
        publish(meeting, mailbox.id, cards, clock)
        return connect(hub, title, generation, 0, cards, mailbox, meeting, clock)
    except BaseException as error:
        mailbox.close()
        failure = c.Roster(c.PROTOCOL, mailbox.id, [], 0, f"rank 0 gave up: {error}"[:1000])
        with contextlib.suppress(TransportError):
            meeting.set("roster/0", c.encode(failure), _LOOK)
        hub.hall.give_up(place)
        raise


def follow(
    hub: Hub, zero: HubPeer, title: str, generation: int, rank: int, size: int, clock: Clock
) -> tuple[Group, c.Opening]:
    """For the other ranks; `zero` is rank 0."""
    meeting = Meeting(hub, zero, place_of(title, generation))
    while True:
        await_meeting(meeting, clock.left)
        opening = c.decode(meeting.get("opening", clock.left), c.Opening)
        if opening.size != size:
            why = f"rank 0 makes {title!r} of {opening.size} ranks, rank {rank} makes it of {size}"
            raise _misfit(meeting, why)
        try:
            mailbox = hub.mailbox(opening.id)
        except InvalidUse:  # what is open there is the one before, which this process has still
            _pause(clock, f"{title!r} is open: close it before it is joined again")
            continue
        try:
            cards = _hand_in(hub, meeting, opening, rank, clock)
            if cards is None:  # it was the one before
                mailbox.close()
                _pause(clock, f"rank 0 has not made {title!r} again")
                continue
            group = connect(hub, title, generation, rank, cards, mailbox, meeting, clock)
        except BaseException:
            mailbox.close()
            raise
        return group, opening


def place_of(title: str, generation: int) -> str:
    return f"{generation}/{title}"


def _pause(clock: Clock, why: str) -> None:
    if clock.passed:
        raise DeadlineExceeded(f"{why} (waited {clock.limit:.3g} s)")
    time.sleep(_PAUSE)


def _collect(meeting: Meeting, size: int, clock: Clock) -> list[c.Card]:
    cards: list[c.Card] = []
    missing: list[int] = []
    for rank in range(1, size):
        found = _await_card(meeting, rank, clock)
        if found is None:
            missing.append(rank)
            continue
        card = c.decode(found, c.Card)
        if card.rank != rank:
            raise PeerError(f"rank {card.rank} came as rank {rank}")
        cards.append(card)
    if missing:
        raise DeadlineExceeded(f"{ranks_of(missing)} did not join within {clock.limit:.3g} s")
    return cards


def _await_card(meeting: Meeting, rank: int, clock: Clock) -> bytes | None:
    """None: it did not come in time. Raises InvalidUse once a rank does not fit."""
    while True:
        try:
            return meeting.get(f"card/{rank}", min(clock.left, _OFTEN))
        except DeadlineExceeded:
            _check_fit(meeting)
            if clock.passed:
                return None


def _misfit(meeting: Meeting, why: str) -> InvalidUse:
    """Of this rank, which rank 0 tells the others."""
    with contextlib.suppress(TransportError):
        meeting.swap(_MISFIT, b"", why.encode()[:1000], _LOOK)
    return InvalidUse(why)


def _check_fit(meeting: Meeting) -> None:
    with contextlib.suppress(PeerError, DeadlineExceeded):  # rank 0 is gone
        why = meeting.peek(_MISFIT, _LOOK)
        if why is not None:
            raise InvalidUse(why.decode(errors="replace")[:1000])


def publish(meeting: Meeting, id: bytes, cards: Sequence[c.Card], clock: Clock) -> None:  # noqa: A002
    """The roster, in rows."""
    for row, begin in enumerate(range(0, len(cards), _ROW)):
        encoded = [c.encode(card) for card in cards[begin : begin + _ROW]]
        roster = c.Roster(c.PROTOCOL, id, encoded, len(cards))
        meeting.set(f"roster/{row}", c.encode(roster), clock.left)


def read_roster(meeting: Meeting, id: bytes, clock: Clock) -> list[c.Card]:  # noqa: A002
    """Raises DeadlineExceeded also where rank 0 gave up."""
    cards: list[c.Card] = []
    row, total = 0, 1
    while row * _ROW < total:
        roster = c.decode(meeting.get(f"roster/{row}", clock.left), c.Roster)
        if roster.failure:
            raise DeadlineExceeded(roster.failure)
        if roster.id != id:
            raise PeerError("the roster is of another group")
        cards.extend(c.decode(each, c.Card) for each in roster.cards)
        row, total = row + 1, roster.total
    if [card.rank for card in cards] != list(range(total)):
        raise PeerError("the roster does not have every rank once")
    return cards


def _hand_in(
    hub: Hub, meeting: Meeting, opening: c.Opening, rank: int, clock: Clock
) -> list[c.Card] | None:
    """The roster that has this rank's new card; None: what is there is older."""
    card = c.mine(rank, hub.door, hub.engine.addresses)
    mine = c.encode(card)
    there = meeting.swap(f"card/{rank}", b"", mine, clock.left)
    if there != mine:
        stale = c.decode(there, c.Card)
        another = stale.region.incarnation != hub.engine.incarnation
        if another and (clock.passed or _is_awaiting(meeting, rank, there)):
            raise _misfit(meeting, f"rank {rank} has joined already, from another process")
        return None
    try:
        cards = read_roster(meeting, opening.id, clock)
    except DeadlineExceeded as error:
        _check_fit(meeting)
        if not clock.passed:
            raise
        here = meeting.count("card/", _LOOK) + 1
        raise DeadlineExceeded(
            f"{here} of {opening.size} ranks joined within {clock.limit:.3g} s"
            f"{_missing(meeting, opening.size)}"
        ) from error
    if len(cards) != opening.size:
        raise PeerError(f"a roster of {len(cards)} is none of {opening.size} ranks")
    return cards if cards[rank].nonce == card.nonce else None


def _is_awaiting(meeting: Meeting, rank: int, card: bytes) -> bool:
    """Whether ranks are still awaited where that card is: it is not the meeting before."""
    if meeting.peek("roster/0", _LOOK) is not None:
        return False
    return meeting.peek(f"card/{rank}", _LOOK) == card


def _missing(meeting: Meeting, size: int) -> str:
    if size > _ROW:
        return ""
    gone = [rank for rank in range(1, size) if meeting.peek(f"card/{rank}", _LOOK) is None]
    return f": {ranks_of(gone)} did not" if gone else ""


def connect(
    hub: Hub,
    title: str,
    generation: int,
    rank: int,
    cards: Sequence[c.Card],
    mailbox: Mailbox,
    meeting: Meeting,
    clock: Clock,
) -> Group:
    """Links to all ranks. Raises PeerLost, DeadlineExceeded, which name the rank."""
    peers = [hub.peer_at(card.region) for card in cards]
    for other, peer in enumerate(peers):
        try:
            peer.connected(clock.left)
        except PeerLost as error:
            raise PeerLost(f"rank {other} cannot be reached: {error}", peer=peer.name) from None
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"rank {other} cannot be reached: {error}") from None
    return Group(
        title,
        generation,
        mailbox.id,
        rank,
        len(cards),
        hub,
        mailbox,
        tuple(peers),
        tuple(cards),
        meeting,
    )


def ranks_of(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (" and others" if len(ranks) > 16 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
