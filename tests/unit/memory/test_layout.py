"""Strided pairs become row copies: checked against numpy by carrying the rows out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.memory.layout import (
    MAX_OUTER,
    Dim,
    bytes_rows,
    contiguous_strides,
    count,
    is_contiguous,
    overlaps_itself,
    pair_rows,
    span,
)


@st.composite
def views(draw, shape, itemsize):
    """A strided, permuted, possibly reversed view of the given shape over a byte buffer."""
    rank = len(shape)
    order = draw(st.permutations(range(rank)))
    gaps = [draw(st.integers(0, 2)) for _ in range(rank)]
    flips = [draw(st.booleans()) for _ in range(rank)]
    steps = [draw(st.integers(1, 3)) for _ in range(rank)]
    base_shape = [shape[i] * steps[i] + gaps[i] for i in order]
    base = np.arange(count(base_shape) * itemsize, dtype=np.uint32).astype(np.uint8)
    array = base.view(f"V{itemsize}").reshape(base_shape).transpose(np.argsort(order))
    index = (*(slice(0, shape[i] * steps[i], steps[i]) for i in range(rank)), ...)
    array = array[index]
    flip = tuple(slice(None, None, -1) if f else slice(None) for f in flips)
    return base, array[(*flip, ...)]


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
itemsizes = st.sampled_from([1, 2, 4, 16])


@st.composite
def pairs(draw):
    shape, itemsize = draw(shapes), draw(itemsizes)
    left, right = draw(views(shape, itemsize)), draw(views(shape, itemsize))
    return shape, itemsize, left, right


def each(rows):
    """Where every row begins on both sides, and its length."""
    for row in rows:
        dims = [*row.outer, Dim(row.rows, row.left_stride, row.right_stride)]
        for index in np.ndindex(*[dim.size for dim in dims]):
            left = row.left + sum(i * dim.left for i, dim in zip(index, dims))
            right = row.right + sum(i * dim.right for i, dim in zip(index, dims))
            yield left, right, row.length


def carry_out(rows, left_base, left_at, right_base, right_at):
    for left, right, length in each(rows):
        a, b = left_at + left, right_at + right
        assert 0 <= a <= a + length <= len(left_base)
        assert 0 <= b <= b + length <= len(right_base)
        left_base[a : a + length] = right_base[b : b + length]


def offset(base, array):
    return array.__array_interface__["data"][0] - base.__array_interface__["data"][0]


@given(pairs())
def test_rows_copy_what_numpy_copies(pair):
    shape, itemsize, (left_base, left), (right_base, right) = pair
    if 0 in shape:
        assert not list(pair_rows(shape, left.strides, right.strides, itemsize))
        return
    expected = left_base.copy()
    twin = np.ndarray(shape, left.dtype, expected, offset(left_base, left), left.strides)
    twin[...] = right
    rows = pair_rows(shape, left.strides, right.strides, itemsize)
    carry_out(rows, left_base, offset(left_base, left), right_base, offset(right_base, right))
    assert np.array_equal(left_base, expected)


@given(pairs())
def test_every_byte_is_moved_once(pair):
    shape, itemsize, (_, left), (_, right) = pair
    rows = list(pair_rows(shape, left.strides, right.strides, itemsize))
    assert sum(length for _, _, length in each(rows)) == count(shape) * itemsize
    assert len(rows) == (0 not in shape)


@given(shapes, itemsizes, st.data())
def test_flat_bytes_are_in_c_order(shape, itemsize, data):
    base, array = data.draw(views(shape, itemsize))
    flat = np.zeros(array.nbytes, np.uint8)
    for left, b, length in each(bytes_rows(shape, array.strides, itemsize)):
        a = offset(base, array) + left
        flat[b : b + length] = base[a : a + length]
    assert flat.tobytes() == array.tobytes()


@given(shapes, itemsizes, st.data())
def test_facts_agree_with_numpy(shape, itemsize, data):
    _, array = data.draw(views(shape, itemsize))
    assert is_contiguous(shape, array.strides, itemsize) == array.flags.c_contiguous
    low, high = span(shape, array.strides, itemsize)
    if array.size:
        first, end = np.lib.array_utils.byte_bounds(array)
        start = array.__array_interface__["data"][0]
        assert (start + low, start + high) == (first, end)
    assert not overlaps_itself(shape, array.strides, itemsize)
    assert (
        contiguous_strides(shape, itemsize) == np.empty(shape, f"V{itemsize}").strides or 0 in shape
    )


def test_contiguous_pair_is_one_row():
    strides = contiguous_strides((8, 16, 4), 4)
    assert len(list(pair_rows((8, 16, 4), strides, strides, 4))) == 1


def test_a_column_block_is_one_range():
    rows = list(pair_rows((100, 8), (400, 4), (32, 4), 4))
    assert rows == [(0, 0, 32, 100, 400, 32, ())]


def test_what_is_round_the_rows_is_outer_dimensions():
    (rows,) = pair_rows((1000, 2, 4), (1000, 300, 4), (2000, 500, 4), 4)
    assert rows == (0, 0, 16, 2, 300, 500, ((1000, 1000, 2000),))


def test_dimensions_that_run_backwards_on_both_sides_join():
    (rows,) = pair_rows((8, 4), (-16, -4), (-16, -4), 4)
    assert rows == (-124, -124, 128, 1, 0, 0, ())
    (rows,) = pair_rows((8, 4), (16, 4), (-16, -4), 4)
    assert rows == (124, -124, 4, 32, -4, 4, ())


def test_more_dimensions_than_c_takes_are_several_ranges():
    shape = (2,) * (MAX_OUTER + 3)
    left = [3 * 4**i for i in range(len(shape))]
    right = [5 * 4**i for i in range(len(shape))]
    rows = list(pair_rows(shape, left, right, 1))
    assert [len(row.outer) for row in rows] == [MAX_OUTER] * 4
    found = sorted((a, b) for a, b, _ in each(rows))
    places = [
        tuple(sum(i * s for i, s in zip(index, strides)) for strides in (left, right))
        for index in np.ndindex(*shape)
    ]
    assert found == sorted(places)


@given(pairs())
def test_flipped_exchanges_the_sides(pair):
    shape, itemsize, (_, left), (_, right) = pair
    rows = list(pair_rows(shape, left.strides, right.strides, itemsize))
    flipped = each(row.flipped() for row in rows)
    assert [(b, a, n) for a, b, n in flipped] == list(each(rows))


@pytest.mark.parametrize(
    ("shape", "strides"), [((4,), (0,)), ((4, 4), (4, 4)), ((3, 4), (8, 4)), ((2, 2), (0, 4))]
)
def test_overlap_is_seen(shape, strides):
    assert overlaps_itself(shape, strides, 4)


def test_empty_and_scalar():
    assert list(pair_rows((0, 4), (16, 4), (16, 4), 4)) == []
    assert list(pair_rows((), (), (), 8)) == [(0, 0, 8, 1, 0, 0, ())]
    assert not overlaps_itself((0, 4), (0, 0), 4)
