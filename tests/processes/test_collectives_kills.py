"""Ranks that are killed: what the others are told, and how they go on."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

import collective_actors as actors  # noqa: E402
from patience import until  # noqa: E402

import transport  # noqa: E402

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("COLLECTIVE_ROUNDS", "4"))
LONG = 10  # seconds: on a loaded machine; what was measured on a quiet one is in docs/status.md


@pytest.fixture(scope="module")
def four():
    host = {"preload": ["torch"], "spares": 1}
    with transport.local(name="four", host=host, pair=2, rank=2) as mesh:
        yield mesh


@pytest.fixture
def ranks(four):
    """Four actors; who was killed is replaced afterwards."""
    made = four.flatten("rank").spawn("ranker", actors.Ranker)
    yield made
    survivors(made, "close")
    for rank in four.crashed:
        four.replace(rank)


def survivors(mesh, method, *arguments, **picks):
    """What the actors answer that live, by rank."""
    found = {}
    for future in getattr(mesh, method).stream(*arguments):
        try:
            value = future.get()
        except transport.ActorCrashed:
            continue
        found[len(found)] = value
    return list(found.values())


def join(ranks, name, **options):
    at = ranks.slice(rank=0).run.call_one("listening").get()
    ranks.join.call(name, at, **options).get()


@pytest.mark.parametrize(("victim", "carrier"), [(0, ""), (1, "gloo"), (3, ""), (3, "gloo")])
def test_others_are_told_who_is_lost_and_go_on_without_it(ranks, victim, carrier):
    join(ranks, f"loses {victim} {carrier}", carrier=carrier)
    told = survivors(ranks, "shrink_after", "until_lost", victim, 0.3, 100_000)
    assert len(told) == 3
    for (took, lost, rounds, later), (_, size, generation, total), shrinking in told:
        assert lost == (victim,)
        assert rounds > 0
        assert later == "RankLost"
        assert (size, generation, total) == (3, 1, 3.0)
        assert took < LONG
        assert shrinking < LONG
    assert sorted(state[0] for _, state, _ in told) == [0, 1, 2]


def test_rounds_of_it_leave_nothing_behind(four):
    """One is killed, three shrink, a new one enters: again and again in the same processes."""
    ranks = four.flatten("rank").spawn("ranker", actors.Uncollected)
    first = {}  # of each process, after its first round
    for number in range(ROUNDS):
        join(ranks, f"round {number}")
        victim = (1, 2, 0)[number % 3]
        told = survivors(ranks, "shrink_after", "until_lost", victim, 0.2, 50_000)
        assert [state[1:] for _, state, _ in told] == [(3, 1, 3.0)] * 3
        survivors(ranks, "close")
        for pid, held in survivors(ranks, "held"):
            first.setdefault(pid, held)
        until(lambda: not grown(ranks, first), lambda: f"more: {grown(ranks, first)}", 30)
        for rank in four.crashed:
            four.replace(rank)


def grown(ranks, first):
    """What each process has more of now."""
    more = {pid: held - first[pid] for pid, held in survivors(ranks, "held")}
    return {pid: kinds for pid, kinds in more.items() if kinds}


def test_no_byte_changes_after_the_error(ranks):
    join(ranks, "quiet")
    assert survivors(ranks, "run", "untouched", 2) == [("RankLost", True)] * 3


def test_a_receive_ends_with_its_sender(ranks):
    join(ranks, "receives")
    for lost, still, took in survivors(ranks, "run", "receive_until_lost", 1):
        assert (lost, still) == ((1,), True)
        assert took < LONG


@pytest.mark.parametrize("carrier", ["", "gloo"])
def test_an_all_reduce_that_tolerates_failures(ranks, carrier):
    join(ranks, f"tolerant {carrier}", carrier=carrier)
    told = survivors(ranks, "run", "tolerant", 30, {5: 1, 17: 3})
    assert len(told) == 2
    (seen, votes, size), other = told
    assert (seen, votes, size) == other  # they agree on who took part, step by step
    assert seen[0] == (0, 1, 2, 3)
    assert seen[-1] == (0, 1)
    assert size == 2
    assert votes == (True, False)


def test_it_grows_again(ranks):
    some = ranks.slice(rank=slice(2))
    at = ranks.slice(rank=0).run.call_one("listening").get()
    some.join.call("grows", at, 2).get()
    at = ranks.slice(rank=0).address.call_one().get()
    coming = ranks.slice(rank=slice(2, 4)).enter.call("grows", at)
    assert list(some.grow.call(2).get().values()) == [(0, 4, 4.0), (1, 4, 4.0)]
    assert sorted(coming.get().values()) == [(2, 4, 4.0), (3, 4, 4.0)]


def test_communicators_along_dimensions_of_a_mesh_and_after_a_replacement(four):
    actors_there = four.spawn("ranker", actors.Ranker)
    assert list(actors_there.make.call(("rank",)).get().values()) == [
        (0, [0, 1]),
        (1, [0, 1]),
        (0, [2, 3]),
        (1, [2, 3]),
    ]
    actors_there.close.call().get()
    made = list(actors_there.make.call(("pair",)).get().values())
    assert made == [(0, [0, 2]), (0, [1, 3]), (1, [0, 2]), (1, [1, 3])]
    actors_there.close.call().get()
    four.replace(0)
    four.replace(3)
    made = list(actors_there.make.call((), "after").get().values())
    assert made == [(rank, [0, 1, 2, 3]) for rank in range(4)]
    made = list(actors_there.close.call().get().values())
