from __future__ import annotations

import numpy as np
import pytest

import transport
from transport.cli.bench_p2p import Plan, find_region, places, timed
from transport.cli.bench_side import is_pattern, pattern, pick_address
from transport.cli.demo import Fetch, Model, Skip, make_row, table
from transport.cli.demo_roles import Sync
from transport.errors import InvalidUse, Unavailable


def make_plan(sizes, batch):
    return Plan("read", sizes, batch, None, "pool", None)


def test_messages_of_a_batch_neither_touch_in_order_nor_overlap():
    found = places(4, 3, 16)
    assert found == [12, 8, 4]


def test_places_wrap_round_when_there_is_no_room():
    assert places(4, 5, 8) == [4, 0, 4, 0, 4]
    assert places(8, 2, 8) == [0, 0]


def test_the_buffer_holds_the_largest_submission_within_reason():
    assert make_plan((4096, 65536), 2).buffer_bytes == 131072
    assert make_plan((1 << 29,), 8).buffer_bytes == 1 << 29
    assert make_plan((1 << 20,), 1 << 20).buffer_bytes == 1 << 28


def test_the_working_set_is_what_a_submission_really_touches():
    plan = make_plan((4096, 1 << 28), 4)
    assert plan.working_set(4096) == 4 * 4096
    assert plan.working_set(1 << 28) == 1 << 28


def test_every_row_is_measured_often_enough():
    plan = make_plan((1,), 1)
    assert plan.iterations_for(3.0) == 15
    assert plan.iterations_for(1e-6) == 2000
    assert plan.iterations_for(1e-2) == 50
    assert Plan("read", (1,), 1, None, "pool", 3).iterations_for(1e-6) == 3


def test_a_peer_without_the_memory_that_was_asked_for_says_so():
    settings = transport.Settings(connect_timeout=1.0)
    with transport.Engine() as far, transport.Engine(settings=settings) as near:
        peer = near.connect(far.addresses[0], timeout=10)
        with pytest.raises(Unavailable, match=r"offers no pool memory.*same --memory"):
            find_region(peer, make_plan((1,), 1))


def test_patterns_differ_between_seeds_and_places():
    one, other = pattern(0, 1 << 16, 1), pattern(0, 1 << 16, 2)
    assert np.count_nonzero(one == other) < len(one) // 100
    assert len(np.unique(one[: 1 << 15].view(np.uint64))) == 1 << 12


@pytest.mark.parametrize(("start", "size"), [(0, 0), (0, 1), (3, 21), (8, 8), (1001, 4096)])
def test_a_pattern_is_the_same_from_any_start(start, size):
    assert np.array_equal(pattern(start, size, 9), pattern(0, start + size, 9)[start:])
    assert is_pattern(pattern(start, size, 9).copy(), 9, start)


def test_one_wrong_byte_is_seen():
    buffer = pattern(0, 100, 1).copy()
    buffer[99] ^= 1
    assert not is_pattern(buffer, 1)


def test_the_address_follows_the_provider():
    addresses = ("unix:@x", "127.0.0.1:5")
    assert pick_address(addresses, None) == "unix:@x"
    assert pick_address(addresses, "shm") == "unix:@x"
    assert pick_address(addresses, "tcp") == "127.0.0.1:5"
    with pytest.raises(InvalidUse):
        pick_address(("unix:@x",), "verbs")


MODEL = Model("file", 104, 200, ({}, {}))
LIMITS = ({"memcpy": 2.0, "streaming": 4.0}, {"memcpy": 3.0, "streaming": 4.0})


def fetch(rate, *wrong):
    return Fetch(rate, [Sync(1, 100, 0.0, {"shm (mapped)": 100}, wrong), Sync(1, 1, 0.0, {}, ())])


def test_a_demo_row_has_medians_without_the_first_fetches():
    row = make_row([fetch(9.0), fetch(2.0), fetch(2.0)], 1, LIMITS, "pool")
    assert (row.provider, row.path) == ("shm", "mapped")
    assert row.gb_per_s == pytest.approx(2.0)
    assert row.limit_gb_per_s == pytest.approx(4.0)
    assert row.share_of_limit == pytest.approx(0.5)
    assert row.verified


def test_one_wrong_digest_in_any_fetch_shows():
    row = make_row([fetch(1.0, "a"), fetch(1.0)], 1, LIMITS, "pool")
    assert not row.verified
    text = table(MODEL, [row], [Skip("verbs", "verbs: no device", "buy one")])
    assert "DIFFERENT" in text
    assert text.splitlines()[-1] == "verbs: no device; buy one"


class UnderWay:
    """What a submission returns, as far as timing needs it."""

    now = most = 0

    def __init__(self):
        UnderWay.now += 1
        UnderWay.most = max(UnderWay.most, UnderWay.now)

    def wait(self):
        UnderWay.now -= 1


@pytest.mark.parametrize(("count", "window"), [(1, 1), (7, 1), (7, 3), (7, 7), (7, 50)])
def test_as_many_submissions_are_under_way_as_the_window_says(count, window):
    UnderWay.now = UnderWay.most = 0
    times, elapsed, last = timed(UnderWay, lambda seconds: count, window)
    assert (len(times), UnderWay.now, UnderWay.most) == (count, 0, min(count, window))
    assert isinstance(last, UnderWay)
    assert elapsed >= max(times)
