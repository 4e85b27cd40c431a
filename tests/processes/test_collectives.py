"""Communicators of real processes: what they compute, and in which order."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import collective_actors as actors  # noqa: E402

import transport  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def five():
    with transport.local(5, name="five", host={"preload": ["torch"]}) as mesh:
        yield mesh.spawn("ranker", actors.Ranker)


def group(five, size, **options):
    """A communicator of the first ones, met at rank 0's own address."""
    some = five.slice(rank=slice(size))
    at = five.slice(rank=0).run.call_one("listening").get()
    some.join.call(f"{size} {options}", at, size, **options).get()
    return some


@pytest.mark.parametrize(
    ("size", "carrier"), [(1, ""), (2, "gloo"), (3, ""), (4, "gloo"), (5, ""), (5, "gloo")]
)
def test_every_kind_of_every_type_gives_what_a_plain_computation_does(five, size, carrier):
    some = group(five, size, carrier=carrier)
    some.reductions.call(actors.FLOATS + actors.WHOLE + actors.OTHERS, actors.SIZES).get()
    some.moves.call(actors.FLOATS + actors.WHOLE + actors.OTHERS, actors.SIZES).get()
    some.close.call().get()


def test_a_large_one(five):
    some = group(five, 3)
    some.reductions.call((torch.float32,), ((1 << 20) + 3,)).get()
    some.moves.call((torch.float32,), ((1 << 20) + 3,)).get()
    some.close.call().get()


def test_operations_end_in_order_also_where_nobody_waits(five):
    some = group(five, 3)
    for ended, value, wanted in some.run.call("in_order").get().values():
        assert ended == list(range(20))
        assert value == [wanted] * 5
    assert [list(each) for each in some.run.call("awaited").get().values()] == [
        [[0, 1, 2], None]
    ] * 3
    assert list(some.run.call("together").get().values()) == [[[3.0] * 3, [0]]] * 3
    assert list(some.run.call("of_numpy").get().values()) == [[[3] * 3] * 2] * 3
    some.close.call().get()


def test_a_deadline_names_who_did_not_call(five):
    some = group(five, 3)
    told = list(some.run.call("late", 1).get().values())
    assert told[1] is None
    assert "rank 1 has not called it" in told[0]
    assert "rank 1 has not called it" in told[2]
    some.close.call().get()


def test_whoever_gives_up_tells_the_others_why(five):
    some = group(five, 3, carrier="gloo")  # which does not notice by itself
    told = list(some.run.call("differ", 1).get().values())
    assert [each[0] for each in told] == ["DeadlineExceeded"] * 3
    why = "rank 1 called all_gather of 4 x float32 where rank 0 called all_reduce of 4 x float32"
    assert why in told[0][1]
    for _, text in told[1:]:
        assert text.startswith("rank 0 gave up: ")
        assert why in text
    some.close.call().get()


def test_calls_that_differ_are_noticed_at_once(five):
    some = group(five, 3)
    for kind, text in some.run.call("differ", 1).get().values():
        assert kind == "InvalidUse"
        assert "all_gather float32" in text
        assert "all_reduce 4 float32 sum" in text
    some.close.call().get()


def test_who_does_not_come_is_named(five):
    some = five.slice(rank=slice(2))
    at = five.slice(rank=0).run.call_one("listening").get()
    with pytest.raises(transport.ActorError, match="rank 2 did not"):
        some.join.call("of three", at, 3, deadline=2).get()


def test_a_rank_that_leaves_is_found_out(five):
    some = group(five, 3)
    told = list(some.run.call("leave", 2).get().values())
    assert [each[0] for each in told[:2]] == ["RankLost", "RankLost"]
    assert "closed the communicator" in told[0][1]
    some.close.call().get()


def test_one_thread_shrinks_it(five):
    some = group(five, 3)
    for refused, total, later, took in some.run.call("shrink_at_once").get().values():
        assert (refused, total, later) == ("InvalidUse", 3.0, ["InvalidUse"] * 2)
        assert took < 20
    some.close.call().get()


def test_a_deadline_may_be_longer_than_c_can_count(five):
    some = group(five, 2, deadline=1e300, operation_deadline=1e300)
    assert list(some.run.call("long_deadlines").get().values()) == [2.0] * 2
    some.close.call().get()
