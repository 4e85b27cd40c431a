"""Parts of sharded tensors: what fits together, and what the error says where it does not."""

from __future__ import annotations

import contextvars

import numpy as np
import pytest

from transport import InvalidUse, Layout, LayoutError, Mesh, Shard, Sharded, StateLayout
from transport.mesh.context import ActorContext, enter
from transport.mesh.shape import Point
from transport.mesh.sharded import check_actors

SHAPE = (6, 4)
HALVES = Layout.placed(SHAPE, "float32", Mesh((2,)), [Shard(0)])
THIRDS = Layout.placed(SHAPE, "float32", Mesh((3,)), [Shard(0)])
STATE = StateLayout({"w": HALVES})
HALF = np.zeros((3, 4), np.float32)


def as_actor(rank, count, function, *args):
    def run():
        enter(ActorContext("a", Point(rank, {"rank": count})))
        return function(*args)

    return contextvars.copy_context().run(run)


def test_a_part_is_of_the_rank_of_its_actor():
    parts = [as_actor(rank, 2, Sharded.part, HALF, HALVES) for rank in range(2)]
    assert Sharded.join(parts).ranks == (0, 1)


def test_two_parts_of_one_rank_are_not_joined():
    parts = [Sharded.part(HALF, HALVES, rank=1), Sharded.part(HALF, HALVES, rank=1)]
    with pytest.raises(LayoutError, match="two parts are of rank 1"):
        Sharded.join(parts)


def test_what_is_no_part_is_not_joined():
    with pytest.raises(InvalidUse, match=r"not a dict.*StateLayout"):
        Sharded.join([{"w": Sharded.part(HALF, HALVES, 0)}])


def test_a_state_goes_into_a_state_layout_and_a_tensor_into_a_layout():
    state, single = Sharded.part({"w": HALF}, STATE, 0), Sharded.part(HALF, HALVES, 0)
    for ask in (state.to, lambda layout: state.fetch(layout, 0)):
        with pytest.raises(LayoutError, match=r"StateLayout\(\{'w': layout\}\)"):
            ask(HALVES)
    for ask in (single.to, lambda layout: single.fetch(layout, 0)):
        with pytest.raises(LayoutError, match="single tensor"):
            ask(STATE)


def test_it_is_no_tensor():
    with pytest.raises(AttributeError, match=r"sharded\.to\(layout\)"):
        Sharded.part(HALF, HALVES, 0).shape


def test_actors_must_have_the_ranks_of_the_layout():
    as_actor(1, 2, check_actors, HALVES)
    as_actor(1, 3, check_actors, STATE)
    with pytest.raises(LayoutError, match=r"3 ranks.*spawned on 2"):
        as_actor(1, 2, check_actors, THIRDS)
    with pytest.raises(LayoutError, match="rank 2 is none"):
        as_actor(2, 3, check_actors, HALVES)


def test_a_rank_that_the_layout_lacks_gets_nothing():
    part = Sharded.part(HALF, HALVES, 0)
    with pytest.raises(LayoutError, match="rank 1 is none"):
        as_actor(1, 2, part.fetch, Layout.whole(SHAPE, "float32"))
