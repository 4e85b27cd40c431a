"""How this process comes into a group: its hub, and rank 0's.

May import hub, joining, card, table, control's addresses, errors.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from transport.collectives import hub, joining, table
from transport.collectives.card import MAX_RANKS, check_name
from transport.control.address import TcpAddress, parse
from transport.errors import DeadlineExceeded, InvalidUse, PeerError, PeerLost
from transport.types import check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transport.collectives.card import Rule
    from transport.collectives.group import Group
    from transport.collectives.hub import Hub, HubPeer
    from transport.engine.engine import Engine

Where: TypeAlias = "str | Callable[[], str]"
_PAUSE = 0.05  # seconds before an address where nobody listens yet is tried again


def join(
    name: str, rank: int, size: int, at: Where | None, *, engine: Engine | None, deadline: float
) -> tuple[Group, Sequence[Rule]]:
    """The group, once all ranks have come, and rank 0's rules for the choice of carriers.

    `at` may be asked again and again where rank 0 is ("": not known yet); `engine` is given then.
    """
    title = check_name(name)
    _check_ranks(rank, size)
    given: Any = at
    if not (given is None or isinstance(given, str) or callable(given)):
        raise InvalidUse(
            f'at= is where rank 0 listens, "HOST:PORT" or "unix:PATH", not {given!r:.80}'
        )
    limit = check_timeout(deadline)
    if limit is None or limit <= 0:
        raise InvalidUse(f"a deadline is a number of seconds above 0, not {deadline!r:.80}")
    clock = joining.Clock(limit)
    if rank == 0:
        return lead(hub_at(at if isinstance(at, str) else None, engine), title, 0, size, clock)
    if at is None:
        raise InvalidUse('ranks other than 0 need at=, where rank 0 listens: "HOST:PORT"')
    mine, zero = reach(at, engine, clock)
    group, opening = joining.follow(mine, zero, title, 0, rank, size, clock)
    return group, opening.rules


def reach(at: Where, engine: Engine | None, clock: joining.Clock) -> tuple[Hub, HubPeer]:
    """The hub of this process, and the one whose engine listens there."""
    if engine is not None:
        mine = hub.of(engine)
    else:
        mine = hub.here(listen=_near(at) if isinstance(at, str) else None)
    return mine, _find(mine, at if callable(at) else lambda: at, clock)


def lead(
    mine: Hub, title: str, generation: int, size: int, clock: joining.Clock
) -> tuple[Group, Sequence[Rule]]:
    rules = table.rules()
    return joining.lead(mine, title, generation, size, rules, clock), rules


def leave(group: Group) -> None:
    """Ends the meeting, where it is served here, and lets all peers go."""
    group.meeting.leave()
    for peer in group.peers:
        peer.let_go()


def hub_at(at: str | None, engine: Engine | None) -> Hub:
    """For rank 0. Raises InvalidUse where its engine does not listen there."""
    mine = hub.of(engine) if engine is not None else hub.here(listen=at)
    if at is not None and not _serves(mine, at):
        where = ", ".join(mine.engine.addresses)
        raise InvalidUse(f"the engine of rank 0 listens at {where}, not at {at}: give its address")
    return mine


def _serves(mine: Hub, at: str) -> bool:
    wanted = parse(at)
    there = [parse(each) for each in mine.engine.addresses]
    if isinstance(wanted, TcpAddress):  # by whatever name its host is called
        return any(isinstance(each, TcpAddress) and each.port == wanted.port for each in there)
    return wanted in there


def _near(at: str) -> str | None:
    """Where to listen so that those who listen there can connect; None: on this host."""
    address = parse(at)
    if not isinstance(address, TcpAddress):
        return None
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
        family, kind, _, _, where = found[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # of a datagram socket: sends nothing
            return str(TcpAddress(str(probe.getsockname()[0]), 0))
    except OSError as error:
        raise InvalidUse(f"{at} cannot be reached from this host: {error}") from None


def _find(mine: Hub, where: Callable[[], str], clock: joining.Clock) -> HubPeer:
    """Rank 0 may listen later than this one asks, and join later than its engine listens."""
    why = unknown = "nobody has said where it is"
    while not clock.passed:
        at = where()
        try:
            if at:
                return mine.peer(at, clock.left)
        except PeerError as error:
            if not isinstance(error, PeerLost) and type(error) is not PeerError:
                raise  # who refuses us, or speaks another version, does so for good
            why = f"{at}: {error}"
        except DeadlineExceeded:
            if why is unknown:  # else what was the matter before tells more
                raise
        time.sleep(min(_PAUSE, clock.left))
    raise DeadlineExceeded(f"rank 0 did not listen within {clock.limit:.3g} s: {why}")


def _check_ranks(rank: Any, size: Any) -> None:
    for value in (rank, size):
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidUse(f"rank and size are whole numbers, not {value!r:.80}")
    if not 0 <= rank < size <= MAX_RANKS:
        raise InvalidUse(
            f"rank {rank} of {size}: a rank is from 0 to size - 1, and a group has at most"
            f" {MAX_RANKS} ranks"
        )
