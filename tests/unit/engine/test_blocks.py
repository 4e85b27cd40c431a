"""Blocks that arrays describe: the ranges that C makes of them, and what it says of wrong ones."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_memory import Far, carry_out, ranges_of

from transport.engine.batch import READ, WRITE, Batch
from transport.engine.blocks import Blocks
from transport.errors import InvalidUse, OutOfRange, RemoteAccessError


def move(local, remote, far, op=READ):
    batch = Batch()
    batch.add(local, remote, op)
    carry_out(batch)
    (part,) = batch.parts()
    return ranges_of(part)


@given(st.data())
def test_any_blocks(data):
    far = Far(np.arange(200, dtype=np.uint8))
    count = data.draw(st.integers(0, 12))
    lengths = [data.draw(st.integers(0, 9)) for _ in range(count)]
    there = [data.draw(st.integers(0, 200 - n)) for n in lengths]
    here = np.cumsum([0, *lengths])[:-1] + np.arange(count)
    local = np.full(200, 255, np.uint8)
    expected = local.copy()
    for a, b, n in zip(here, there, lengths):
        expected[a : a + n] = far.array[b : b + n]
    move(Blocks(local, here, lengths), Blocks(far.remote, there, np.int32(lengths)), far)
    assert np.array_equal(local, expected)
    packed = np.zeros(sum(lengths), np.uint8)
    move(packed, Blocks(far.remote, there, lengths), far)
    parts = [far.array[b : b + n] for b, n in zip(there, lengths)]
    assert np.array_equal(packed, np.concatenate([*parts, packed[:0]]))


@pytest.mark.parametrize(
    "numbers",
    [
        lambda x: x,
        tuple,
        np.array,
        torch.tensor,
        lambda x: array("q", x),
        lambda x: array("i", x),
        lambda x: np.array(x, np.int32),
        lambda x: torch.tensor(x, dtype=torch.int32),
        lambda x: np.array([x, x]).T[:, 0],
        lambda x: np.array(x)[::-1][::-1],
    ],
)
def test_numbers_of_every_kind(numbers):
    far, local = Far(np.arange(40, dtype=np.int16).reshape(10, 4)), np.zeros((3, 4), np.int16)
    move(local, Blocks(far.remote, pages=numbers([7, 0, 9])), far)
    assert np.array_equal(local, far.array[[7, 0, 9]])


def test_pages_of_a_size():
    far, local = Far(np.arange(64, dtype=np.uint8)), torch.zeros(6, 2, dtype=torch.int32)
    pages = Blocks(local, pages=range(2, 0, -1), page_bytes=16)
    move(pages, Blocks(far.remote, [0, 48], 16), far, READ)
    assert bytes(local.numpy().tobytes()) == bytes([*[0] * 16, *range(48, 64), *range(16)])
    assert len(pages) == 2
    assert "2 pages" in repr(pages)


def test_pages_of_strided_memory():
    """Such as the keys of a cache of [pages, 2, ...], whose pages are whole."""
    far = Far(np.arange(2 * 5 * 6, dtype=np.float32).reshape(5, 2, 6))
    local = np.zeros((6, 5), np.float32)
    target = np.zeros((5, 6), np.float32)[::-1]
    with pytest.raises(InvalidUse, match="a page of the local side is not contiguous"):
        move(Blocks(local.T, pages=[0]), Blocks(far.remote[:, 1], pages=[0]), far)
    with pytest.raises(InvalidUse, match="not contiguous, so it has no pages of 24 bytes"):
        move(Blocks(target, pages=[0], page_bytes=24), Blocks(far.remote, pages=[0]), far)
    with pytest.raises(InvalidUse, match="only `pages`"):
        move(Blocks(target, [0], 24), Blocks(far.remote, [0]), far)
    move(Blocks(target, pages=[0, 3]), Blocks(far.remote[:, 1], pages=[4, 2]), far)
    assert np.array_equal(target[[0, 3]], far.array[[4, 2], 1])


def test_neighbours_are_one_range():
    """E3: blocks that lie side by side on both sides become one."""
    far, local = Far(np.zeros((1000, 8), np.uint8)), np.zeros((1000, 8), np.uint8)
    pages = np.arange(1000)
    assert len(move(Blocks(local, pages=pages), Blocks(far.remote, pages=pages), far)) == 1
    assert len(move(local, Blocks(far.remote, pages=pages), far)) == 1
    swapped = pages.copy()
    swapped[[400, 600]] = 600, 400
    assert len(move(Blocks(local, pages=pages), Blocks(far.remote, pages=swapped), far)) == 5


def test_blocks_and_views_in_one_batch():
    far, local = Far(np.arange(100, dtype=np.uint8)), np.zeros(100, np.uint8)
    batch = Batch()
    batch.add(local[:10], far.remote[:10], READ)
    batch.add(Blocks(local, [50, 10], 5), Blocks(far.remote, [60, 70]), READ)
    batch.add(local[15:20], far.remote[10:15], READ)
    carry_out(batch)
    assert np.array_equal(local[:20], [*range(10), *range(70, 75), *range(10, 15)])
    assert np.array_equal(local[50:55], range(60, 65))


_FAR = Far(np.zeros(100, np.uint8))
_HUGE = 1 << 62


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        (([0, 5, 8], 2), ([0, 1, 99], 2), "block 2: 2 bytes from byte 99 .* remote side.* has 100"),
        (([0, 5, 9], 2), ([0, 1, 2], 2), "block 2: 2 bytes from byte 9 .* the local side.* has 10"),
        (([0, -1], 2), ([0, 1], 2), "block 1: 2 bytes from byte -1 .* the local side"),
        (([0, 1], [1, -2]), ([0, 1], None), "block 1: its length is -2"),
        (([0, 1], [1, 2]), ([0, 1], [1, 3]), "block 1: 2 local bytes for 3 remote bytes"),
        (([0, _HUGE], [1, _HUGE]), ([0, 1], None), "block 1: .* outside the local side"),
        (([0, 1], 11), ([0, 1], None), "block 0: 11 bytes from byte 0 on are outside"),
    ],
)
def test_the_first_wrong_block_is_named(here, there, words):
    local = np.zeros(10, np.uint8)
    with pytest.raises(OutOfRange, match=words):
        Batch().add(Blocks(local, *here), Blocks(_FAR.remote, *there), READ)
    with pytest.raises(IndexError, match="block"):
        Batch().add(Blocks(local, *here), Blocks(_FAR.remote, *there), WRITE)


@pytest.mark.parametrize(
    ("side", "words"),
    [
        ({"pages": [0, 4, 5], "page_bytes": 20}, "block 2: the remote side has no page 5, but 5"),
        ({"pages": [-1], "page_bytes": 20}, "block 0: the remote side has no page -1"),
        ({"pages": [0], "page_bytes": 30}, "the 100 bytes of the remote side are no pages of 30"),
        ({"pages": [0], "page_bytes": 0}, "no pages of 0"),
        (
            {"pages": [0], "page_bytes": 100},
            "100 bytes from byte 0 .* local side, .* has 60",
        ),
        ({"offsets": [0, 1]}, "one side must tell the lengths"),
        ({"offsets": [0, 1], "lengths": [1, 2, 3]}, "2 offsets, 3 lengths"),
        (
            {"offsets": [0, 1], "lengths": 4},
            "blocks have 8 bytes in all, and the local .* 60",
        ),
        ({"offsets": [0, 1], "lengths": 31}, "block 1: 31 bytes from byte 31 on are outside"),
    ],
)
def test_refused_sides(side, words):
    with pytest.raises(InvalidUse, match=words):
        Batch().add(bytearray(60), Blocks(_FAR.remote, **side), READ)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "one of the two"),
        ({"offsets": [0], "pages": [0]}, "one of the two"),
        ({"pages": [0], "lengths": 1}, "no `lengths`"),
        ({"offsets": [0], "page_bytes": 1}, "`page_bytes` is of `pages`"),
        ({"offsets": [0, "x"]}, r"offsets\[1\] is no integer: 'x'"),
        ({"pages": [0, 1.5]}, r"pages\[1\] is no integer: 1.5"),
        ({"offsets": [0], "lengths": [1 << 63]}, r"lengths\[0\] is 9223372036854775808, which"),
        ({"offsets": np.zeros(3)}, r"offsets are integers .* not float64\[3\]"),
        ({"offsets": np.zeros((3, 1), int)}, r"one dimension .* not int64\[3, 1\]"),
        ({"offsets": np.zeros(3, np.uint64)}, "int64 or int32"),
        ({"offsets": 5}, "offsets are integers in a list"),
        ({"offsets": {1: 2}}, "no memory"),
    ],
)
def test_refused_numbers(options, words):
    with pytest.raises(InvalidUse, match=words):
        Blocks(bytearray(10), **options)


def test_lengths_and_page_bytes_are_one_number():
    for options in ({"offsets": [0], "lengths": 1.5}, {"pages": [0], "page_bytes": "x"}):
        with pytest.raises(InvalidUse, match="no "):
            Batch().add(Blocks(bytearray(10), **options), Blocks(_FAR.remote, [0], 1), READ)


def test_counts_must_agree_and_sides_be_right():
    local = bytearray(10)
    with pytest.raises(InvalidUse, match="2 local blocks for 1 remote ones"):
        Batch().add(Blocks(local, [0, 1], 1), Blocks(_FAR.remote, [0]), READ)
    with pytest.raises(InvalidUse, match="must be a RemoteRegion"):
        Batch().add(Blocks(local, [0], 1), Blocks(local, [0], 1), READ)
    with pytest.raises(InvalidUse, match="read-only"):
        Batch().add(Blocks(b"0123", [0], 1), Blocks(_FAR.remote, [0]), READ)
    far = Far(np.zeros(9, np.uint8), access=1)
    with pytest.raises(RemoteAccessError):
        Batch().add(Blocks(local, [0], 1), Blocks(far.remote, [0]), WRITE)
    expanded = np.broadcast_to(np.zeros(8, np.uint8), (3, 8))
    with pytest.raises(InvalidUse, match="share bytes"):
        Batch().add(
            Blocks(torch.zeros(1, 8, dtype=torch.uint8).expand(3, 8), pages=[0, 1]),
            Blocks(_FAR.remote, [0, 8]),
            READ,
        )
    far = Far(np.zeros(16, np.uint8))
    move(Blocks(expanded, pages=[2, 1]), Blocks(far.remote, [0, 8]), far, WRITE)


def test_no_blocks():
    """E5: an empty list is nothing to do."""
    for empty in ([], np.zeros(0, np.int64), range(0)):
        assert move(Blocks(bytearray(4), empty), Blocks(_FAR.remote, empty, 4), _FAR) == []
        assert move(bytearray(0), Blocks(_FAR.remote, pages=empty, page_bytes=10), _FAR) == []
