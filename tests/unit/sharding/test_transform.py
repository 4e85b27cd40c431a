"""Fused tensors and other names: the same elements of the same local tensors, called otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import shards

from transport.errors import LayoutError
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Shard
from transport.sharding.state import StateLayout
from transport.sharding.transform import join, merge, permute, rename, split, unstack

TP = Mesh((2,), ("tp",))
ROWS = Layout.placed((8, 2), "float32", TP, [Shard(0)])


def test_rename():
    state = StateLayout({"model.a.weight": ROWS, "model.b.bias": ROWS, "head": ROWS, "x": ROWS})
    made = rename(state, {r"model\.(.)\.weight": r"\1.w", r"(?P<n>model.*)": r"\g<n>!", "x": None})
    assert list(made) == ["a.w", "model.b.bias!", "head"]
    assert [entry.tensor for entry in made.values()] == ["model.a.weight", "model.b.bias", "head"]
    with pytest.raises(LayoutError, match="two tensors"):
        rename(state, {".*": "same"})


@pytest.mark.parametrize("groups", [1, 2])
def test_split(groups):
    """The parts have, rank by rank, what the same slices of the fused tensor have."""
    fused = Layout.placed((8 * groups, 3), "float32", TP, [Shard(0)])
    parts = {r"\1.q": 4, r"\1.k": 1, r"\1.v": 3}
    made = split(StateLayout({"0.qkv": fused, "1.qkv": fused}), r"(\d)\.qkv", parts, groups=groups)
    assert list(made) == ["0.q", "0.k", "0.v", "1.q", "1.k", "1.v"]
    assert made["1.v"].tensor == "1.qkv"
    assert made["0.k"].layout is made["1.k"].layout
    locals_ = shards.filled(fused)
    held = shards.gathered(fused, locals_)
    for name, rows in {"0.q": range(4), "0.k": [4], "0.v": range(5, 8)}.items():
        taken = [8 * group + row for group in range(groups) for row in rows]
        found = shards.gathered(made[name].layout, locals_)
        assert all((found[rank] == held[rank][taken]).all() for rank in (0, 1))


def test_split_and_join_are_two_ways_to_say_it():
    """Two ranks with [q; k; k] each: joined shards, or one tensor of two groups taken apart."""
    q, k = (Layout.placed((n, 3), "float32", TP, [Shard(0)]) for n in (8, 2))
    apart = StateLayout({"0.q": q, "0.k": k, "0.v": k})
    joined = join(apart, r"(\d)\.q", [r"\1.q", r"\1.k", r"\1.v"], r"\1.qkv")
    fused = StateLayout({"0.qkv": Layout.placed((12, 3), "float32", TP, [Shard(0)])})
    taken = split(fused, r"(\d)\.qkv", {r"\1.q": 4, r"\1.k": 1, r"\1.v": 1}, groups=2)
    assert list(joined) == list(taken)
    assert joined.local_shapes(1) == taken.local_shapes(1) == {"0.qkv": ((6, 3), "float32")}
    for name in joined:
        assert joined[name].layout.pieces() == taken[name].layout.pieces()


def test_experts():
    """A serving engine's tensor of gates and ups of its experts, as a checkpoint names them."""
    mesh = Mesh((3, 2), ("ep", "tp"))
    experts = Layout.placed((6, 4, 2), "bfloat16", mesh, [Shard(0), Shard(1)])
    state = StateLayout({"0.gate": experts, "0.up": experts, "1.gate": experts, "1.up": experts})
    state = join(state, r"(\d)\.gate", [r"\1.gate", r"\1.up"], r"\1.w13", dim=1)
    for part in ("gate", "up"):
        state = unstack(state, rf"(\d)\.{part}", rf"\1.experts.{{index}}.{part}")
    assert state.local_shapes(5) == {f"{n}.w13": ((2, 4, 2), "bfloat16") for n in "01"}
    up = state["1.experts.3.up"]
    assert up.tensor == "1.w13"
    pieces = up.layout.pieces()
    assert pieces.rank.tolist() == [2, 3]  # expert 3 is the second of ep 1
    assert pieces.start.tolist() == [12, 12]
    assert pieces.offset.tolist() == [[0, 0], [2, 0]]
    assert len(state.layouts) == 12


def test_permute():
    state = permute(StateLayout({"w": ROWS, "b": ROWS}), "w", [1, 0])
    assert state["w"].layout.shape == (2, 8)
    expected = np.arange(16).reshape(2, 8).T
    assert (shards.filled(state["w"].layout)[1].reshape(4, 2) == expected[4:]).all()
    assert state["b"].layout.shape == (8, 2)


def test_merge():
    """Two pipeline stages with two data-parallel meshes each, which know nothing of each other."""

    def stage(name, *meshes):
        return [
            StateLayout({name: Layout.placed((4,), "int8", Mesh((2,), ranks=mesh), [Shard(0)])})
            for mesh in meshes
        ]  # fmt: skip

    merged = merge([*stage("a", [0, 1], [2, 3]), *stage("b", [4, 5], [6, 7]), *stage("a", [0, 1])])
    assert list(merged) == ["a", "b"]
    assert merged["a"].layout.ranks.tolist() == [0, 1, 2, 3]
    assert merged.ranks == tuple(range(8))
    with pytest.raises(LayoutError, match=r"a: rank 1 .*twice"):
        merge([*stage("a", [0, 1]), *stage("a", [1, 2])])
    other = StateLayout({"a": Layout.whole((5,), "int8", 9)})
    with pytest.raises(LayoutError, match=r"a: .*not one tensor"):
        merge([*stage("a", [0, 1]), other])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda s: split(s, "q", {"a": 3, "b": 4}), "q: .*is not the 8"),
        (lambda s: split(s, "q", {"a": 4, "b": 4}, dim=2), "q: .*no dimension"),
        (lambda s: split(s, "nothing", {"a": 8}), "no name matches"),
        (lambda s: unstack(s, "q", "{index}", dim=3), "q: .*no dimension"),
        (lambda s: join(s, "q", ["q", "w"], "qw"), r"\['w'\] cannot be joined"),
        (lambda s: join(join(s, "q", ["q", "k"], "qk"), "q", ["q", "k"], "qk"), "cannot be joined"),
        (lambda s: join(s, "q", ["q", "one"], "x"), "q, one: .*stacked: rank 1"),
        (lambda s: permute(s, "q", [0]), "q: .*no order"),
        (lambda s: rename(s, {"(q": "x"}), r"'\(q' is no pattern"),
        (lambda s: rename(s, {"q": r"\2"}), "makes no name of 'q'"),
        (lambda s: rename(s, {"q": r"\g<other>"}), "makes no name of 'q'"),
        (lambda s: split(s, "[", {"a": 8}), "is no pattern"),
        (lambda s: join(s, "*", ["q"], "x"), "is no pattern"),
    ],
)
def test_what_does_not_fit_is_named(wrong, words):
    state = StateLayout({"q": ROWS, "k": ROWS, "one": Layout.whole((8, 2), "float32")})
    with pytest.raises(LayoutError, match=words):
        wrong(state)
