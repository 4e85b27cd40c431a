"""From one generation of a communicator to the next. May import regroup, seat, call, bootstrap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.collectives import bootstrap
from transport.collectives.call import Call, Kind
from transport.collectives.choice import Choice
from transport.collectives.joining import Clock
from transport.collectives.regroup import Regroup, enter
from transport.collectives.seat import Seat
from transport.errors import InvalidUse, RankLost, TransportError
from transport.types import check_timeout

if TYPE_CHECKING:
    import torch

    from transport.collectives.group import Group
    from transport.engine.engine import Engine

_DEVICES = ("cpu",)  # whose carriers are made with a communicator


def shrunk(seat: Seat, limit: float, pending: torch.Tensor | None) -> tuple[Seat, list[int], bool]:
    """The seat in a generation of those who are left; which rank here each of its ranks had; and
    whether `pending`, which an all-reduce that tolerates failures is to fill, has been filled by
    those who had the result."""
    clock = Clock(limit)
    numbers = list(range(seat.group.size))
    while True:
        seat = _next(seat, clock, 0)
        numbers = [numbers[card.former] for card in seat.group.cards]
        try:
            seat.open(_DEVICES, clock.left)
            return seat, numbers, _catch_up(seat, pending, clock)
        except RankLost:
            continue
        except BaseException:
            seat.close()
            raise


def grown(seat: Seat, newcomers: Any, limit: float) -> Seat:
    if isinstance(newcomers, bool) or not isinstance(newcomers, int) or newcomers < 1:
        raise InvalidUse(f"newcomers is a number above 0, not {newcomers!r:.80}")
    seat.check()
    clock = Clock(limit)
    made = _next(seat, clock, newcomers)
    try:
        made.open(_DEVICES, clock.left)
        _catch_up(made, None, clock)
    except RankLost:  # the caller finds it broken, and shrinks
        return made
    return made


def entered(name: str, at: str, engine: Engine | None, limit: float) -> Seat:
    clock = Clock(limit)
    hub, zero = bootstrap.reach(at, engine, clock)
    group, opening = enter(hub, zero, name, clock)
    made = Seat(group, Choice(opening.rules))
    try:
        made.open(_DEVICES, clock.left)
        _catch_up(made, None, clock)
    except RankLost:
        return made
    except BaseException:
        made.close()
        raise
    return made


def _next(seat: Seat, clock: Clock, newcomers: int) -> Seat:
    with seat.succession():
        seat.attempts += 1
        kept = seat.kept
        group: Group = Regroup(
            seat.group,
            seat.health,
            clock,
            attempt=seat.attempts,
            rules=seat.choice.rules,
            kept=kept.count,
            newcomers=newcomers,
        ).run()
        made = Seat(group, seat.choice)
        made.kept = kept
        seat.close(quietly=True)
        return made


def _catch_up(seat: Seat, pending: torch.Tensor | None, clock: Clock) -> bool:
    """Gives the last result of an all-reduce that tolerates failures to those who have it not.

    A rank died when some had it and others not. Newcomers have missed it.
    """
    counts = [card.kept if card.former >= 0 else -1 for card in seat.group.cards]
    most, mine = max(counts), counts[seat.group.rank]
    if mine < 0:
        seat.kept.count = max(most, 0)
    if all(count in (-1, most) for count in counts):
        return False
    root = counts.index(most)
    members = [rank for rank, count in enumerate(counts) if 0 <= count < most]
    if seat.group.rank == root:
        assert seat.kept.result is not None
        for rank in members:
            _message(seat, Kind.SEND, rank, seat.kept.result, clock)
    if seat.group.rank not in members:
        return False
    if pending is None:
        raise TransportError("the others have finished an all-reduce that this rank has not begun")
    _message(seat, Kind.RECV, root, pending, clock)
    seat.kept.finish(pending)
    return True


def _message(seat: Seat, kind: Kind, peer: int, tensor: torch.Tensor, clock: Clock) -> None:
    source, target = ((tensor,), ()) if kind is Kind.SEND else ((), (tensor,))
    call: Any = Call(kind, source, target, peer=peer, tag=_TAG)
    seat.run([call], None, clock.left, None).wait()


_TAG = (1 << 31) - 1


def check_limit(deadline: Any) -> float:
    limit = check_timeout(deadline)
    if limit is None or limit <= 0:
        raise InvalidUse(f"a deadline is a number of seconds above 0, not {deadline!r:.80}")
    return limit
