"""How ranks find each other: whoever does not fit is told to all at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from transport import DeadlineExceeded, Engine, InvalidUse
from transport.collectives import bootstrap
from transport.collectives.hub import Hub
from transport.collectives.joining import Clock, follow, lead
from transport.collectives.meeting import Meeting, await_meeting

SIZE = 3


@pytest.fixture
def hubs():
    made = [Hub(Engine(name=f"hub {number}"), owned=True) for number in range(SIZE)]
    yield made
    for hub in reversed(made):
        hub.close()


@pytest.mark.parametrize(
    ("rank", "size", "why"),
    [(2, SIZE + 1, "of 3 ranks, rank 2 makes it of 4"), (1, SIZE, "rank 1 has joined already")],
)
def test_all_hear_at_once_of_a_rank_that_does_not_fit(hubs, rank, size, why):
    zero, one, other = hubs

    def come(hub, rank, size):
        first = hub.peer(zero.engine.addresses[0], 10)
        return follow(hub, first, "some", 0, rank, size, Clock(30))

    with ThreadPoolExecutor(SIZE) as pool:
        coming = [
            pool.submit(lead, zero, "some", 0, SIZE, [], Clock(30)),
            pool.submit(come, one, 1, SIZE),
        ]
        meeting = Meeting(zero, None, "0/some")
        await_meeting(meeting, 10)
        meeting.get("card/1", 10)
        begun = time.monotonic()
        coming.append(pool.submit(come, other, rank, size))
        for each in coming:
            with pytest.raises(InvalidUse, match=why):
                each.result()
        assert time.monotonic() - begun < 10


def test_an_engine_may_listen_before_its_rank_joins():
    """As one that was made beforehand does."""
    with Engine(name="zero") as zero, Engine(name="one") as one:
        at = zero.addresses[0]
        with pytest.raises(DeadlineExceeded, match=r"nobody here answers 'collectives\.door'"):
            bootstrap.reach(at, one, Clock(0.5))
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(bootstrap.reach, at, one, Clock(30))
            with Hub(zero) as hub:
                assert coming.result()[1].incarnation == hub.engine.incarnation


@pytest.mark.parametrize(
    ("rank", "size", "at", "why"),
    [
        (2, 2, "unix:@x", "from 0 to size - 1, and a group has at most 16384 ranks"),
        (0, 1 << 20, "unix:@x", "at most 16384 ranks"),
        (0, 2, 29500, r"at= is where rank 0 listens, .* not 29500"),
        (1, 2, ["unix:@x"], "at= is where rank 0 listens"),
        (1, 2, None, "ranks other than 0 need at="),
        (True, 2, "unix:@x", "whole numbers, not True"),
    ],
)
def test_wrong_arguments_are_told_at_once(rank, size, at, why):
    with pytest.raises(InvalidUse, match=why):
        bootstrap.join("some", rank, size, at, engine=None, deadline=30)
