"""Whole states: local tensors that hold several, what is shared, and what cannot be."""

from __future__ import annotations

import pytest

from transport.errors import LayoutError
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Shard
from transport.sharding.state import StateLayout
from transport.sharding.transform import join, split, unstack

TP = Mesh((2,), ("tp",))
ROWS = Layout.placed((8, 4), "float32", TP, [Shard(0)])


def test_equal_layouts_are_kept_once():
    again = Layout.placed((8, 4), "float32", TP, [Shard(-2)])
    state = StateLayout({"a": ROWS, "b": again, "c": (again, "other")})
    assert state["a"].layout is state["b"].layout is state["c"].layout
    assert state["c"].tensor == "other"
    assert len(state.layouts) == 1


def test_a_hundred_thousand_tensors():
    layouts = [Layout.placed((64, n), "int8", TP, [Shard(0)]) for n in range(1, 101)]
    state = StateLayout((f"layer.{i}", layouts[i % 100]) for i in range(100_000))
    assert len(state.layouts) == 100
    assert StateLayout.decode(state.encode()).key == state.key
    assert state.local_shapes(1)["layer.99999"] == ((32, 100), "int8")


def test_parts_of_local_tensors_leave_each_other_alone():
    experts = Layout.placed((4, 6, 2), "int8", TP, [Shard(0)])
    state = join(
        StateLayout({"gate": experts, "up": experts}), "gate", ["gate", "up"], "w13", dim=1
    )
    state = unstack(state, "(gate|up)", r"\1.{index}")
    state = split(state, r"up\.0", {"up.0.a": 2, "up.0.b": 1}, groups=2)
    assert state.local_shapes(0) == {"w13": ((2, 12, 2), "int8")}


def flat(first, count, start):
    return Layout.flat((4, 4), "float32", [0, 1], first=first, count=count, start=start, numel=16)


@pytest.mark.parametrize(
    ("one", "other", "rank"),
    [
        (ROWS, ROWS.part((0, 0), (1, 4)), 0),
        (ROWS.part((0, 0), (8, 3)), ROWS.part((5, 2), (3, 2)), 1),
        (ROWS.interleaved(1, 0, 1, 2), ROWS.select(1, 2), 0),
        (ROWS.permuted([1, 0]).select(1, 5), ROWS.select(0, 5), 1),
        (flat([0, 8], 8, 0), flat([0, 8], 8, [8, 7]), 1),
        (Layout.whole((), "int8"), Layout.whole((), "int8").permuted([]), 0),
    ],
)
def test_tensors_that_overlap_are_named(one, other, rank):
    state = StateLayout({"a": (one, "local"), "b": (other, "local")})
    with pytest.raises(LayoutError, match=f"a and b overlap in local of rank {rank}|b and a over"):
        state.local_shapes(rank)
    assert state.local_shapes(7) == {}


def test_tied_weights_are_one():
    state = StateLayout({"embedding": (ROWS, "w"), "head": (ROWS, "w")})
    assert state.local_shapes(1) == {"w": ((4, 4), "float32")}


def test_shapes_of_a_local_tensor_agree():
    with pytest.raises(LayoutError, match="'b' needs 'a' of rank 0"):
        StateLayout({"a": ROWS, "b": (Layout.whole((1,), "int8"), "a")}).local_shapes(0)


def test_what_is_no_layout_is_named():
    with pytest.raises(LayoutError, match="'a' is described by 3"):
        StateLayout({"a": 3})
