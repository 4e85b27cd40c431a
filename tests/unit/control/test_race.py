"""Which of several addresses is gone on with, and that nothing of the others is left."""

from __future__ import annotations

import asyncio
import math

import pytest

from transport.control import messages, race
from transport.control.address import TcpAddress, UnixName
from transport.control.handshake import Refused, Stale
from transport.errors import PeerLost, PeerRefused, StaleRegion

A, B, C = (TcpAddress("10.0.0.1", port) for port in (1, 2, 3))
UNIX = UnixName("here")


class Attempts:
    """What each address does, and what was done there.

    "silent": never answers; "answers": leads, and makes the link; "stuck": leads, and no more; an
    exception: raised at once, or after it led where its address is in `late`.
    """

    def __init__(self, late=(), **does):
        self._does = does
        self._late = late
        self.begun, self.cancelled, self.made = [], [], []
        self.all_begun = asyncio.Event()

    async def __call__(self, address, lead):
        does = self._does[str(address.port) if isinstance(address, TcpAddress) else "unix"]
        self.begun.append(address)
        if len(self.begun) == len(self._does):
            self.all_begun.set()
        try:
            if does == "silent":
                await asyncio.Event().wait()
            if isinstance(does, Exception) and address not in self._late:
                raise does
            lead()
            if does == "stuck":
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            if isinstance(does, Exception):
                raise does
            self.made.append(address)
        except asyncio.CancelledError:
            self.cancelled.append(address)
            raise


def run(attempts, *addresses, seconds=60.0):
    async def main():
        end = asyncio.get_running_loop().time() + seconds
        await race.Race(addresses, attempts, end).run("it")

    asyncio.run(main())


@pytest.fixture
def eager(monkeypatch):
    """No head start."""
    monkeypatch.setattr(race, "HEAD_START", 0.0)


@pytest.fixture
def patient(monkeypatch):
    """The next begins only when one has ended."""
    monkeypatch.setattr(race, "HEAD_START", math.inf)


def test_the_first_that_answers_wins_and_the_others_are_cancelled(eager):
    attempts = Attempts(**{"1": "silent", "2": "silent", "3": "answers"})
    run(attempts, A, B, C)
    assert attempts.begun == [A, B, C]
    assert (attempts.made, attempts.cancelled) == ([C], [A, B])


def test_after_its_head_start_the_next_begins():
    attempts = Attempts(**{"1": "silent", "2": "answers"})
    run(attempts, A, B)
    assert (attempts.made, attempts.cancelled) == ([B], [A])


def test_a_quick_one_is_all_that_is_tried(patient):
    attempts = Attempts(**{"1": "answers"})
    run(attempts, A, B)
    assert attempts.begun == [A]


def test_when_one_fails_the_next_begins_at_once(patient):
    attempts = Attempts(**{"1": PeerLost("no"), "2": PeerLost("no"), "3": "answers"})
    run(attempts, A, B, C)
    assert (attempts.begun, attempts.made) == ([A, B, C], [C])


def test_nothing_runs_beside_a_unix_socket(eager):
    attempts = Attempts(unix="silent", **{"1": "answers"})
    run(attempts, UNIX, A, seconds=0.02)
    assert (attempts.begun, attempts.cancelled, attempts.made) == ([UNIX, A], [UNIX], [A])


def test_only_one_goes_on_and_another_gets_its_turn_when_that_fails(eager):
    """B answers while A leads: it steps back, and is tried again after A's proof was refused."""
    attempts = Attempts(late=(A,), **{"1": PeerRefused("no"), "2": "answers"})
    run(attempts, A, B)
    assert attempts.made == [B]
    assert attempts.begun[0] == A
    assert set(attempts.begun[1:]) == {B}


def test_while_one_leads_no_other_begins_until_its_time_is_over(eager):
    attempts = Attempts(**{"1": "stuck", "2": "answers"})
    run(attempts, A, B, seconds=0.05)
    assert (attempts.made, attempts.cancelled) == ([B], [A])


def test_a_duplicate_ends_the_round(eager):
    attempts = Attempts(**{"1": "silent", "2": Refused(messages.DUPLICATE, "theirs is coming")})
    run(attempts, A, B)
    assert (attempts.made, attempts.cancelled) == ([], [A])


def test_the_most_telling_error_is_raised(patient):
    errors = {"1": PeerLost("nobody"), "2": Stale("another"), "3": PeerRefused("no")}
    with pytest.raises(StaleRegion, match=r"10\.0\.0\.1:2 is another incarnation"):
        run(Attempts(**errors), A, B, C)
    with pytest.raises(PeerLost, match="it has no address"):
        run(Attempts())


def test_a_race_that_is_cancelled_cancels_all(eager):
    attempts = Attempts(**{"1": "silent", "2": "silent"})

    async def main():
        end = asyncio.get_running_loop().time() + 60
        task = asyncio.create_task(race.Race((A, B), attempts, end).run("it"))
        await attempts.all_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert attempts.cancelled == [A, B]


def test_an_error_of_ours_is_not_taken_for_the_peers(eager):
    attempts = Attempts(**{"1": "silent", "2": ZeroDivisionError()})
    with pytest.raises(ZeroDivisionError):
        run(attempts, A, B)
    assert attempts.cancelled == [A]
