"""Named dimensions: every view shows the members that its coordinates say."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import InvalidUse, OutOfRange, ValueMesh
from transport.mesh.shape import Point, Shape

SIZES = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=1)


@given(SIZES, st.data())
def test_a_slice_shows_what_its_coordinates_say(sizes, data):
    shape = Shape(sizes)
    name = data.draw(st.sampled_from(sorted(sizes)))
    place = data.draw(st.integers(0, sizes[name] - 1))
    view = shape.slice(**{name: place})
    assert name not in view.sizes
    for index, point in enumerate(view.points()):
        assert view.ranks[index] == shape.ranks[shape.index({**point, name: place})]


@given(SIZES)
def test_points_count_in_row_major_order(sizes):
    shape = Shape(sizes)
    places = itertools.product(*map(range, sizes.values()))
    assert [tuple(point.values()) for point in shape.points()] == list(places)
    assert [shape.index(point) for point in shape.points()] == list(range(len(shape)))
    assert len(shape) == math.prod(sizes.values()) == shape.size()


@given(SIZES)
def test_flatten_and_split_keep_the_members(sizes):
    shape = Shape(sizes)
    flat = shape.flatten("rank")
    assert flat.sizes == {"rank": len(shape)}
    assert flat.split("rank", **sizes) == shape
    assert hash(flat.split("rank", **sizes)) == hash(shape)


def test_a_slice_keeps_its_dimension_and_a_number_drops_it():
    shape = Shape({"replica": 2, "shard": 4})
    assert shape.slice(replica=1).sizes == {"shard": 4}
    assert shape.slice(replica=1).ranks == (4, 5, 6, 7)
    assert shape.slice(shard=slice(None, None, 2)).ranks == (0, 2, 4, 6)
    assert shape.slice(replica=-1, shard=slice(1, 3)).ranks == (5, 6)
    assert shape.rename(shard="tp").sizes == {"replica": 2, "tp": 4}
    assert shape.slice(replica=1).flatten("rank").slice(rank=0).ranks == (4,)


@pytest.mark.parametrize(
    "act",
    [
        lambda s: s.slice(nothing=0),
        lambda s: s.slice(replica=2),
        lambda s: s.slice(replica=True),
        lambda s: s.slice(replica="0"),
        lambda s: s.slice(replica=slice(2, 2)),
        lambda s: s.rename(replica="shard"),
        lambda s: s.split("shard", a=3),
        lambda s: s.split("shard", replica=2, b=2),
        lambda s: s.index({"replica": 0}),
        lambda s: s.size("nothing"),
        lambda s: Shape({"a": 0}),
        lambda s: Shape({"a": 2}, (1,)),
    ],
)
def test_what_cannot_be_says_so(act):
    with pytest.raises(InvalidUse) as raised:
        act(Shape({"replica": 2, "shard": 4}))
    assert str(raised.value)


def test_outside_is_out_of_range():
    with pytest.raises(OutOfRange, match="0 to 1"):
        Shape({"replica": 2}).slice(replica=5)


def test_a_point_is_a_mapping():
    point = Point(6, {"replica": 2, "shard": 4})
    assert dict(point) == {"replica": 1, "shard": 2}
    assert point == Point(6, {"replica": 2, "shard": 4})
    assert hash(point) == hash(Point(6, {"replica": 2, "shard": 4}))
    assert repr(point) == "Point(replica=1, shard=2)"
    with pytest.raises(KeyError, match="nothing"):
        point["nothing"]


def test_values_have_the_dimensions_of_their_mesh():
    values = ValueMesh(Shape({"replica": 2, "shard": 2}), ("a", "b", "c", "d"))
    assert values.item(replica=1, shard=0) == "c"
    assert values.slice(replica=1).values() == ["c", "d"]
    assert values.slice(replica=1, shard=1).item() == "d"
    assert values.flatten("rank").item(rank=3) == "d"
    assert values.rename(shard="tp").sizes == {"replica": 2, "tp": 2}
    assert values.map(str.upper).values() == ["A", "B", "C", "D"]
    assert [(dict(point), value) for point, value in values][1] == ({"replica": 0, "shard": 1}, "b")
    assert len(values) == values.size() == 4
    assert values.size("shard") == 2
    with pytest.raises(InvalidUse):
        values.item(replica=1)
