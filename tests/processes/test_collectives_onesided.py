"""One-sided collectives between processes: every kind, reduction and dtype, and every way to fail.

Each call is compared with a plain computation of the same values.
"""

from __future__ import annotations

import pytest

from tests.support.collective_ranks import run_ranks

pytest.importorskip("torch")
JOBS = "tests.support.onesided_jobs"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_bytes_move_in_every_kind(size):
    assert run_ranks(size, JOBS, ("moves",)) == [True] * size


@pytest.mark.parametrize("size", [1, 4])
def test_reductions_are_those_of_a_plain_computation(size):
    done = run_ranks(size, JOBS, ("reduces",))
    assert done == [done[0]] * size
    assert done[0] > 40


def test_all_ranks_have_the_same_bits():
    found = run_ranks(4, JOBS, ("bits",))
    assert found == [found[0]] * 4
    assert len(set(found[0])) == 6


def test_messages_are_matched_by_peer_and_tag_in_order():
    ended = run_ranks(3, JOBS, ("messages",))
    assert all(count <= 64 for count in ended), "what nobody receives is bounded"


@pytest.mark.parametrize("what", ["kind", "size", "dtype", "root"])
def test_ranks_that_disagree_all_hear_of_it(what):
    found = run_ranks(3, JOBS, ("disagree", what))
    assert all("different collectives" in text for text in found), found


@pytest.mark.parametrize("count", [3, 3000, 2_000_000])
def test_ranks_that_all_take_themselves_for_the_root_hear_of_it(count):
    found = run_ranks(3, JOBS, ("all_roots", count))
    assert all("different collectives" in text for text in found), found


def test_a_small_tensor_can_be_resized_afterwards():
    assert run_ranks(2, JOBS, ("resizable",)) == [0, 0]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("after", [0.003, 0.05])
def test_a_rank_that_is_killed_ends_the_call_of_all(kind, after):
    found = run_ranks(4, JOBS, ("die", kind, after))
    assert found.pop(1) is None
    for name, ranks, took, still in found:
        assert (name, ranks, still) == ("RankLost", (1,), True)
        assert took < 15


def test_abort_ends_what_is_under_way_and_what_comes():
    first, *others = run_ranks(3, JOBS, ("abort",))
    assert first == ("RankLost", "RankLost")
    assert set(others) == {"PeerError"}


def test_a_deadline_ends_the_call_of_all():
    first, second, third = run_ranks(3, JOBS, ("late",))
    assert (first, second) == ("DeadlineExceeded", "late")
    assert third == "PeerError"


def test_calls_go_on_while_nobody_waits():
    assert run_ranks(3, JOBS, ("alone",)) == [True] * 3


def test_a_rank_may_leave_after_its_last_call():
    assert run_ranks(3, JOBS, ("leave",)) == [True] * 3


def test_ranks_of_one_machine_talk_by_boards_and_by_mail_where_those_are_full():
    assert run_ranks(3, JOBS, ("boards",)) == [(True, True)] * 3


def test_a_rank_that_scribbles_on_its_board():
    first, _, third = run_ranks(3, JOBS, ("scribble",))
    for name, text in (first, third):
        assert name == "PeerError"
        assert "messages that it cannot hold" in text
