"""Plans against what they are for: run on arrays, every wanted element arrives, and once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resharding import filled, layouts, nothing, numbered, run, same, shapes

from transport.errors import InvalidUse, LayoutError
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate, Shard
from transport.sharding.places import FAR, HOST, PROCESS, Places
from transport.sharding.plan import plan
from transport.sharding.state import StateLayout

SHARD, COPY = Shard(0), Replicate()


def placed(shape, mesh, *placements, dtype="float32"):
    return Layout.placed(shape, dtype, Mesh(mesh), placements)


def plans(source, target, direction="pull", **more):
    ranks = (target if direction == "pull" else source).ranks
    return [plan(source, target, rank, direction=direction, **more) for rank in ranks]


def check(source, target, made):
    """Every wanted element arrives, once, whatever the order; padding is left alone."""
    sources, targets = filled(source, numbered), filled(target, nothing)
    for one in made:
        run(one, sources, targets)
    assert same(targets, filled(target, numbered))


@st.composite
def states(draw):
    tensors = draw(st.lists(shapes, min_size=1, max_size=4))
    pair = [{}, {}]
    for number, shape in enumerate(tensors):
        for side in pair:
            side[f"t{number}"] = draw(layouts(shape))
        for again in range(draw(st.integers(0, 2))):
            for side in pair:
                side[f"t{number}.{again}"] = side[f"t{number}"]
    return tuple(StateLayout(side) for side in pair)


@st.composite
def places(draw, state):
    count = state.ranks[-1] + 1
    names = st.lists(st.integers(0, 3), min_size=count, max_size=count)
    host = draw(names)
    process = [(h, draw(st.sampled_from([0, 0, rank, None]))) for rank, h in enumerate(host)]
    return Places([p if p[1] is not None else None for p in process], host, draw(names))


# ---------------------------------------------------------------------------------------- complete
@settings(max_examples=80, deadline=None)
@given(states(), st.data())
def test_pulls_and_pushes_of_all_ranks_fill_the_target_exactly(pair, data):
    more = {}
    if data.draw(st.booleans()):
        more["source_places"] = data.draw(places(pair[0]))
        more["target_places"] = data.draw(places(pair[1]))
    for direction in ("pull", "push"):
        check(*pair, plans(*pair, direction, **more))


# ------------------------------------------------------------------------------- fewer sources
def left(source, dead):
    """Of each tensor, which elements the others have."""
    have = {}
    for name, entry in source.items():
        boxes = entry.layout.pieces()
        kept = ~np.isin(boxes.rank, list(dead))
        held = np.zeros(entry.layout.shape, bool)
        for low, size in zip(boxes.offset[kept], boxes.size[kept]):
            held[tuple(slice(a, a + n) for a, n in zip(low, size))] = True
        have[name] = held
    return have


def wanted(target, rank, have):
    """Of what a target rank wants, how many elements are had, and how many there are."""
    found = total = 0
    for name, entry in target.items():
        boxes = entry.layout.pieces()
        mine = boxes.rank == rank
        for low, size in zip(boxes.offset[mine], boxes.size[mine]):
            box = have[name][tuple(slice(a, a + n) for a, n in zip(low, size))]
            found, total = found + int(box.sum()), total + box.size
    return found, total


@settings(max_examples=50, deadline=None)
@given(states(), st.data())
def test_sources_may_be_left_out(pair, data):
    dead = data.draw(st.sets(st.sampled_from(pair[0].ranks), max_size=2))
    have = left(pair[0], dead)
    if all(have[name].all() for name in pair[1]):
        for direction in ("pull", "push"):
            made = plans(*pair, direction, without=dead)
            assert not any(np.isin(one.source_rank, list(dead)).any() for one in made)
            check(*pair, made)
    else:
        with pytest.raises(LayoutError, match="no source rank has"):
            plans(*pair, "push", without=dead)
        for rank in pair[1].ranks:  # each is told only of what it needs itself
            found, total = wanted(pair[1], rank, have)
            if found == total:
                assert plan(*pair, rank, without=dead).size.prod(axis=1).sum() == total
            else:
                with pytest.raises(LayoutError, match="no source rank has"):
                    plan(*pair, rank, without=dead)


# ----------------------------------------------------------------------------------------- nearness
def test_what_is_in_the_process_or_on_the_host_is_not_fetched_from_afar():
    """Two hosts with two processes each; every source and target rank r runs in process r."""
    source = StateLayout({"w": placed((4, 8), (2, 2), COPY, SHARD)})
    target = StateLayout({"w": placed((4, 8), (4,), COPY)})
    here = Places(range(4), [0, 0, 1, 1])
    made = plans(source, target, source_places=here, target_places=here)
    check(source, target, made)
    for one in made:
        # Its own half is in the process, the other half on its host.
        assert one.source_rank.tolist() == [one.rank ^ 1, one.rank]
        assert one.tier.tolist() == [HOST, PROCESS]
        assert (one.nbytes, one.total_bytes) == (64, 128)
    apart = plan(source, target, 0)
    assert (apart.tier == FAR).all()
    assert apart.nbytes == apart.total_bytes == 128


def test_the_nearest_replica_that_is_left_is_used():
    source = StateLayout({"w": placed((8,), (3,), COPY)})
    target = StateLayout({"w": Layout.whole((8,), "float32")})
    where = {
        "source_places": Places("abc", [0, 0, 1]),
        "target_places": Places("a", [0]),
    }
    sources = [plan(source, target, 0, without=gone, **where) for gone in [(), (0,), (0, 1)]]
    assert [one.source_rank.tolist() for one in sources] == [[0], [1], [2]]
    assert [one.tier.tolist() for one in sources] == [[PROCESS], [HOST], [FAR]]


# ------------------------------------------------------------------------------------------- copies
def test_contiguous_dimensions_and_neighbours_become_one_copy():
    rows = StateLayout({"w": placed((8, 3, 5), (2,), SHARD)})
    whole = StateLayout({"w": Layout.whole((8, 3, 5), "float32")})
    one = plan(rows, whole, 0)
    assert one.size.tolist() == [[60], [60]]
    flat = Layout.flat((8, 3, 5), "float32", [0, 1], first=[0, 49], count=[49, 71], numel=[49, 71])
    one = plan(StateLayout({"w": flat}), whole, 0)  # up to five boxes each
    assert one.size.tolist() == [[49], [71]]
    columns = StateLayout({"w": placed((8, 3, 5), (2,), Shard(1))})
    one = plan(columns, whole, 0)
    assert one.size.tolist() == [[8, 10], [8, 5]]
    assert one.source_stride.tolist() == [[10, 1], [5, 1]]
    assert one.target_stride.tolist() == [[15, 1], [15, 1]]


def test_what_follows_in_equal_steps_is_one_copy():
    """Query, key and value heads interleaved: group by group four heads of q, one of k and v."""
    fused = placed((48, 5), (2,), SHARD)
    target = StateLayout({"q": Layout.whole((32, 5), "float32")})
    source = StateLayout({"q": (fused.interleaved(0, 0, 4, 6), "qkv")})
    one = plan(source, target, 0)
    assert one.source_rank.tolist() == [0, 1]
    assert one.size.tolist() == [[4, 20], [4, 20]]
    assert one.source_stride.tolist() == [[30, 1], [30, 1]]
    assert one.target_stride.tolist() == [[20, 1], [20, 1]]
    check(source, target, [one])


def test_transposed_tensors_are_contiguous_where_they_can_be():
    turned = Layout.whole((8, 4, 3), "float32").permuted((2, 0, 1))
    state = StateLayout({"w": turned})
    assert plan(state, state, 0).size.tolist() == [[96]]
    plain = StateLayout({"w": Layout.whole((3, 8, 4), "float32")})
    one = plan(state, plain, 0)
    assert one.size.tolist() == [[3, 32]]
    check(state, plain, [one])


def test_big_tensors_are_divided_among_replicas():
    source = StateLayout({"w": placed((1000, 1000), (4,), COPY)})
    target = StateLayout({"w": Layout.whole((1000, 1000), "float32")})
    one = plan(source, target, 0)
    assert one.source_rank.tolist() == [0, 1, 2, 3]
    assert one.bytes_by_rank == dict.fromkeys(range(4), 1_000_000)


def test_targets_do_not_all_begin_with_the_same_source():
    source = StateLayout({"w": placed((64,), (8,), SHARD)})
    target = StateLayout({"w": placed((64,), (4,), COPY)})
    begin = [plan(source, target, rank).source_rank[0] for rank in range(4)]
    assert begin == [0, 2, 4, 6]
    assert plan(source, target, 1).source_rank.tolist() == [2, 3, 4, 5, 6, 7, 0, 1]


def test_dtypes_may_differ_and_are_named():
    source = StateLayout({"a": (placed((4,), (2,), SHARD), "x"), "b": placed((4,), (2,), SHARD)})
    target = StateLayout(
        {"b": placed((4,), (1,), SHARD, dtype="bfloat16"), "a": source["a"].layout}
    )
    one = plan(source, target, 0)
    names = [one.source_names[i] for i in one.source_tensor]
    assert set(zip(names, (one.target_names[i] for i in one.target_tensor))) == {
        ("x", "a"),
        ("b", "b"),
    }
    assert dict(zip(one.source_names, one.source_dtypes)) == {"x": "float32", "b": "float32"}
    assert dict(zip(one.target_names, one.target_dtypes)) == {"a": "float32", "b": "bfloat16"}
    assert one.nbytes == 4 * (2 + 4)


# ------------------------------------------------------------------------------------------ content
def test_plans_are_kept_by_content_and_read_only():
    def state():
        return StateLayout({"w": placed((8,), (2,), SHARD)})

    one = plan(state(), state(), 1)
    assert plan(state(), state(), 1) is one
    assert plan(state(), state(), 0) is not one
    assert plan(state(), state(), 1, direction="push").key != one.key
    assert "pull rank=1 copies=1 16 B sources=1" in repr(one)
    with pytest.raises(ValueError, match="read-only"):
        one.size[0] = 1


def test_ranks_that_take_no_part_have_nothing_to_do():
    source = StateLayout({"w": Layout.whole((8,), "float32", rank=3)})
    target = StateLayout({"w": Layout.whole((8,), "float32", rank=5)})
    assert len(plan(source, target, 4)) == len(plan(source, target, 99)) == 0
    assert len(plan(source, target, 0, direction="push")) == 0
    assert len(plan(source, target, 3, direction="push")) == 1
    nothing = StateLayout({"w": placed((0, 4), (2,), SHARD)})
    assert len(plan(nothing, nothing, 0)) == 0


# ----------------------------------------------------------------------------------------- refusals
def test_what_cannot_be_planned():
    whole = Layout.whole((4, 6), "float32")
    source, target = StateLayout({"a": whole}), StateLayout({"a": whole, "b": whole, "c": whole})
    with pytest.raises(LayoutError, match=r"no source has 'b' and 1 more, needed by target rank 0"):
        plan(source, target, 0)
    other = StateLayout({"a": placed((6, 4), (2,), SHARD)})
    with pytest.raises(LayoutError, match=r"'a' is \[4, 6\].*ranks 0 to 0.*\[6, 4\].*0 to 1"):
        plan(source, other, 0)
    part = Layout.explicit((4, 6), "float32", {0: [((0, 0), (2, 6))], 1: [((2, 2), (2, 4))]})
    tall = StateLayout({"a": placed((4, 6), (2,), SHARD)})
    for rank in range(2):  # all ranks are told, also those that could go on
        with pytest.raises(LayoutError, match=r"4 of the 12 elements of 'a'\[2:4, 0:6\].*rank 1"):
            plan(StateLayout({"a": part}), tall, rank)
    with pytest.raises(LayoutError, match=r"once source rank 0 may not be used"):
        plan(source, source, 0, without={0})
    with pytest.raises(LayoutError, match=r"source_places tells of 0 ranks"):
        plan(source, source, 0, source_places=Places([]))
    with pytest.raises(InvalidUse, match="pull"):
        plan(source, source, 0, direction="sideways")


def test_what_is_no_layout_and_no_rank():
    state = StateLayout({"w": Layout.whole((4,), "int8")})
    for wrong in ({}, None, state["w"].layout):
        with pytest.raises(InvalidUse, match="the source is a StateLayout"):
            plan(wrong, state, 0)
        with pytest.raises(InvalidUse, match="the target is a StateLayout"):
            plan(state, wrong, 0)
    for rank in ("0", None, True, 0.0):
        with pytest.raises(InvalidUse, match="a rank is a whole number"):
            plan(state, state, rank)
    for wrong in (3, [0]):
        with pytest.raises(InvalidUse, match="source_places is a Places or None"):
            plan(state, state, 0, source_places=wrong)
    for wrong in (3, ["0"], "0"):
        with pytest.raises(InvalidUse, match="without is a collection of ranks"):
            plan(state, state, 0, without=wrong)
    with pytest.raises(LayoutError, match=r"a mesh is a Mesh.*not a tuple"):
        Layout.placed((4,), "int8", (2,), [Shard(0)])


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_rank_that_takes_no_part_copies_nothing(direction):
    state = StateLayout({"w": Layout.whole((4,), "int8")})
    made = plan(state, state, 7, direction=direction)
    assert (len(made), made.nbytes, made.bytes_by_rank) == (0, 0, {})
