"""Layouts that arrive as bytes: what no peer of ours would send is a LayoutError."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import LayoutError
from transport.sharding import wire
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.models import MODELS
from transport.sharding.parallelism import Parallelism
from transport.sharding.placement import Shard, StridedShard
from transport.sharding.rules import named, sharded
from transport.sharding.state import StateLayout


def _state():
    placed = Layout.placed((8, 6), "float32", Mesh((2, 2), ranks=[[3, 1], [0, 7]]), [Shard(0)] * 2)
    strided = Layout.placed((8, 6), "int8", Mesh((2, 2)), [StridedShard(0, 2), Shard(0)])
    boxes = {0: [((0,), (2,))], 3: [((2,), (2,), (3,)), ((4,), (1,), (0,))]}
    explicit = Layout.explicit((5,), "bfloat16", boxes, {3: (6,)})
    flat = Layout.flat((2, 3), "float64", [0, 1], first=[0, 4], count=[4, 2], numel=4)
    other = Layout.flat((2, 3), "float64", [5], first=0, count=6, numel=6)
    stacked = Layout.stacked([placed, placed.part((0, 0), (4, 6))], 1)
    return StateLayout(
        {
            "a": placed,
            "b": (strided.interleaved(0, 1, 2, 4), "local b"),
            "c": explicit,
            "d": flat.permuted([1, 0]).select(0, 2),
            "e": stacked[1],
            "f": Layout.union([flat, other]),
        }
    )


ENCODED = _state().encode()


def test_a_state_is_what_it_was():
    state = _state()
    for again in (StateLayout.decode(ENCODED), pickle.loads(pickle.dumps(state))):
        assert again == state
        assert again.key == state.key
        assert [e.tensor for e in again.values()] == ["a", "local b", "c", "d", "e", "f"]
        for name, entry in state.items():
            assert again[name].layout.pieces() == entry.layout.pieces()


def test_what_is_shared_is_sent_once():
    layout = Layout.placed((4096, 64), "float32", Mesh((1024,), ranks=range(1, 1025)), [Shard(0)])
    one = StateLayout({"0": layout}).encode()
    many = StateLayout((str(i), layout) for i in range(100)).encode()
    assert len(many) < len(one) + 100 * 10


@given(st.binary(max_size=200))
def test_noise_is_refused(data):
    with pytest.raises(LayoutError):
        StateLayout.decode(data)


@given(st.data())
def test_damage_is_refused_or_makes_another_layout(data):
    """Whatever the bytes become: an answer, or a LayoutError."""
    damaged = bytearray(ENCODED)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    damaged = bytes(damaged[: data.draw(st.integers(len(damaged) - 3, len(damaged)))])
    try:
        state = StateLayout.decode(damaged)
        for entry in state.values():
            entry.layout.pieces()
    except LayoutError:
        pass


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([2, [], [], []], "another version"),
        ([1, [], [["placed", [4], "int8", 0, [[0, 1]]]], []], "do not fit together"),
        ([1, [], [["part", 0, [0], [1], [0]]], []], "do not fit together"),
        ([1, [], [], [["a", 0, ""]]], "do not fit together"),
        ([1, [[[1 << 40], ["x"], b""]], [], []], "limit"),
        ([1, [[[1 << 20], [name], b""] for name in "abcdefgh"], [], []], "ranks in all"),
        ([1, [[[2], ["x"], bytes(16)]], [], []], "stands in one place"),
        ([1, [[[2], ["x"], bytes(7)]], [], []], "do not fit together"),
        ([1, [], [["flat", [4], "int8", [bytes(8)] * 4 + [b""]]], []], "different lengths"),
        ([1, [], [["flat", [4], "int8", [bytes(8)] * 3 + [bytes([9] * 8)] * 2]], []], "leaves"),
        ([1, [], [["flat", [1 << 40, 1 << 40], "int8", [b""] * 5]], []], "limit"),
        ([1, [], [["whole", [4]]], []], "describe no layouts"),
    ],
)
def test_lies_are_refused(state, words):
    with pytest.raises(LayoutError, match=words):
        StateLayout.decode(msgspec.msgpack.encode(state))


_ONE = [[1], ["x"], b""]
_HUGE = ["placed", [1 << 40, *[1] * 12], "int8", 0, [[-1, 0]]]
_LONG = ["placed", [1 << 59], "int8", 0, [[-1, 0]]]
_CUT = ["placed", [1 << 40], "int8", 0, [[0, 1 << 20]] * 2]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([1, [_ONE], [_HUGE, ["interleaved", 0, 0, 0, 1, 1 << 17]], []], "have .* indices"),
        ([1, [[[2, 2], ["x", "y"], b""]], [_CUT], []], "have .* indices"),
        ([1, [_ONE], [_LONG, ["stacked", [0] * 16, 0, 3]], []], "stacked are over the limit"),
        ([1, [_ONE], [_LONG, ["stacked", [], 0, 0]], []], "do not fit together"),
    ],
)
def test_a_few_bytes_do_not_take_gigabytes(state, words):
    with pytest.raises(LayoutError, match=words):
        StateLayout.decode(msgspec.msgpack.encode(state))


def test_many_layouts_of_many_pieces_do_not_either(monkeypatch):
    monkeypatch.setattr(wire, "MAX_NUMBERS", 10_000)
    many = [["placed", [1 << 10, i], "int8", 0, [[0, 1]]] for i in range(1, 10)]
    state = [1, [[[1 << 10], ["x"], b""]], many, []]
    with pytest.raises(LayoutError, match="in all are refused"):
        StateLayout.decode(msgspec.msgpack.encode(state))


def test_many_boxes_beside_each_other_are_compared_quickly():
    count = 50_000  # pairs would be over a thousand million
    boxes = {0: [((0, i), (4, 1), (0, i)) for i in range(count)]}
    layout = Layout.explicit((4, count), "int8", boxes, {0: (4, count)})
    assert len(layout.pieces()) == count


def test_layouts_made_of_each_other_without_end_are_refused():
    parts = [["interleaved", index, 0, 0, 1, 1] for index in range(100)]
    flat = ["flat", [4], "int8", [bytes(8)] * 5]
    with pytest.raises(LayoutError, match="times over"):
        StateLayout.decode(msgspec.msgpack.encode([1, [], [flat, *parts], []]))


_SMALL = ["placed", [4], "int8", 0, [[0, 1]]]


@pytest.mark.parametrize(
    "state",
    [
        [1, [_ONE], [_SMALL], [["", 0, ""]] * (wire.MAX_TENSORS + 1)],
        [1, [_ONE], [_SMALL] * (wire.MAX_LAYOUTS + 1), []],
    ],
)
def test_more_tensors_or_layouts_than_any_model_has_are_refused_unread(state):
    with pytest.raises(LayoutError, match="describe no layouts"):
        StateLayout.decode(msgspec.msgpack.encode(state))


@pytest.mark.slow
def test_the_largest_published_models_are_well_within_the_bounds():
    """A quarter of each bound is enough for them; 16 stages make the most layouts."""
    model = MODELS["kimi-k2"]
    spread = Parallelism.parse("fsdp=4096")
    state = sharded(model.tensors(), spread, named(model.kv_heads))
    assert len(state.encode()) < wire.MAX_BYTES / 4
    assert len(state) < wire.MAX_TENSORS / 4
    indices = sum(it.ranks.size + it.pieces().offset.size for it in state.layouts)
    assert 4 * indices < wire.MAX_NUMBERS / 4  # on four times as many ranks
    model = MODELS["deepseek-v3"]
    staged = sharded(model.tensors(), Parallelism.parse("pp=16,fsdp=16,tp=4,ep=64"), named())
    assert len(staged.layouts) < wire.MAX_LAYOUTS / 4
    assert StateLayout.decode(state.encode()) == state
