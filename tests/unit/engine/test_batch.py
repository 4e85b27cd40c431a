"""From requests to packed ranges: what C would get, carried out on plain memory."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transport.engine.batch import RANGE, READ, WRITE, Batch, Part, Read, Write
from transport.errors import InvalidUse, RemoteAccessError
from transport.memory.remote import NATIVE, Owner, RemoteRegion


class Far:
    """Memory that plays the remote region's."""

    def __init__(self, array, access=3, number=1, incarnation=b"i" * 16):
        self.array = array
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
        self.base = low
        native = NATIVE.pack(number, 1, b"k" * 16, low, high - low, 0, 0, access, *[0] * 11)
        owner = Owner.make(incarnation, (), native)
        offset = array.__array_interface__["data"][0] - low if array.size else 0
        self.remote = RemoteRegion(owner, offset, array.dtype.name, array.shape, array.strides)


def carry_out(batch, far):
    for part in batch.parts():
        for packed in part.ranges:
            local, _, offset, length, rows, ls, rs, _, _ = RANGE.unpack(packed)
            for row in range(rows):
                here, there = local + row * ls, far.base + offset + row * rs
                to, source = (here, there) if part.op == READ else (there, here)
                ctypes.memmove(to, source, length)


def index_of(draw, shape):
    index = []
    for size in shape:
        start = draw(st.integers(0, size))
        stop = draw(st.integers(start, size))
        step = draw(st.integers(1, 3))
        index.append(slice(start, stop, step))
    return tuple(index)


@given(st.data())
def test_reads_and_writes_of_any_two_views(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    far = Far(np.arange(np.prod(shape), dtype=np.int32).reshape(shape))
    index = index_of(data.draw, shape)
    expected = far.array[index]
    base = np.zeros([2 * n + 1 for n in expected.shape], np.int32)
    flips = data.draw(st.tuples(*[st.sampled_from([2, -2])] * len(shape)))
    starts = [0 if f > 0 else 2 * n - 1 for f, n in zip(flips, expected.shape)]
    first = sum(start * step // 4 for start, step in zip(starts, base.strides))
    strides = [flip * step for flip, step in zip(flips, base.strides)]
    local = np.lib.stride_tricks.as_strided(base.reshape(-1)[first:], expected.shape, strides)
    batch = Batch()
    batch.add(local, far.remote[index], READ)
    carry_out(batch, far)
    assert np.array_equal(local, expected)
    local += 1000
    batch = Batch()
    batch.add(local, far.remote[index], WRITE)
    carry_out(batch, far)
    assert np.array_equal(far.array[index], local)


@given(st.data())
def test_untyped_sides_are_in_c_order(data):
    far = Far(np.arange(60, dtype=np.int16).reshape(3, 4, 5))
    index = index_of(data.draw, (3, 4, 5))
    part = far.remote[index]
    buffer = bytearray(part.nbytes)
    batch = Batch()
    batch.add(buffer, part, READ)
    carry_out(batch, far)
    assert bytes(buffer) == far.array[index].tobytes()


def test_contiguous_sides_are_one_range():
    far = Far(np.zeros((10, 10), np.float32))
    batch = Batch()
    batch.add(torch.zeros(10, 10), far.remote, READ)
    (part,) = batch.parts()
    assert len(part.ranges) == 1
    assert RANGE.unpack(part.ranges[0])[2:5] == (0, 400, 1)


def test_two_pieces_of_an_untyped_pair_cannot_both_be_strided():
    far = Far(np.zeros((4, 4), "V8").view("u8"))
    batch = Batch()
    with pytest.raises(InvalidUse, match="contiguous"):
        batch.add(np.zeros((8, 4), "S8")[::2], far.remote[:, :4:1][:, 0:4][::1, ::-1], READ)


def test_grouping_by_engine_and_kind():
    a, b = Far(np.zeros(8, np.uint8)), Far(np.zeros(8, np.uint8), number=2)
    other = Far(np.zeros(8, np.uint8), incarnation=b"j" * 16)
    batch = Batch()
    for request in [
        Read(a.remote, bytearray(8)),
        Read(b.remote, bytearray(8)),
        Write(bytes(8), a.remote),
        Read(other.remote, bytearray(8)),
        Read(a.remote[2:4], bytearray(2)),
    ]:
        batch.add_request(request)
    parts = batch.parts()
    found = [(p.owner.incarnation[:1], p.op, len(p.ranges), len(p.owners)) for p in parts]
    assert found == [(b"i", READ, 3, 2), (b"i", WRITE, 1, 1), (b"j", READ, 1, 1)]
    assert [RANGE.unpack(r)[7] for r in parts[0].ranges] == [0, 1, 0]
    assert len(parts[0].remotes()) == 2 * NATIVE.size
    assert len(batch.pins) == 5


@pytest.mark.parametrize(
    ("local", "words"),
    [
        (np.zeros(3, np.float32), "must be equal"),
        (np.zeros(4, np.int32), "must be equal"),
        (torch.zeros(2, 2), "must be equal"),
        (bytearray(15), "15 local bytes for 16 remote bytes"),
        (b"0123456789abcdef", "read-only"),
        (torch.zeros(1).expand(4), "share bytes"),
        ([1, 2, 3, 4], "no memory"),
    ],
)
def test_refused_reads(local, words):
    with pytest.raises(InvalidUse, match=words):
        Batch().add(local, Far(np.zeros(4, np.float32)).remote, READ)


def test_access_is_checked_even_for_nothing():
    for access, op in ((1, WRITE), (2, READ)):
        far = Far(np.zeros(4, np.uint8), access=access)
        for remote in (far.remote, far.remote[0:0]):
            with pytest.raises(RemoteAccessError):
                Batch().add(bytearray(remote.nbytes), remote, op)


def test_an_expanded_tensor_may_be_a_source_only():
    far = Far(np.zeros((3, 4), np.float32))
    batch = Batch()
    batch.add(torch.arange(4.0).expand(3, 4), far.remote, WRITE)
    carry_out(batch, far)
    assert np.array_equal(far.array, np.broadcast_to(np.arange(4, dtype=np.float32), (3, 4)))
    expanded = Far(np.broadcast_to(np.zeros(4, np.float32), (3, 4)))
    with pytest.raises(InvalidUse, match="share bytes"):
        Batch().add(torch.zeros(3, 4), expanded.remote, WRITE)


@pytest.mark.parametrize("remote", [None, "x", object()])
def test_the_remote_side_must_be_a_handle(remote):
    with pytest.raises(InvalidUse, match="RemoteRegion"):
        Batch().add(bytearray(1), remote, READ)


def test_requests_are_reads_and_writes():
    with pytest.raises(InvalidUse, match="a Read or a Write"):
        Batch().add_request(("read", 1))


def test_key_tables_are_placed_one_after_another():
    """B19: each handle finds its own keys in the table of the batch."""
    owners = []
    for number, spans in ((1, 3), (2, 0), (3, 2)):
        length, span = (spans * 4096, 4096) if spans else (100, 0)
        native = NATIVE.pack(
            number, 1, b"k" * 16, 0, length, 0, 0, 3, number, *[0] * 7, span, 0, number % 2
        )
        keys = struct.pack(f"<{spans}I", *range(10 * number, 10 * number + spans))
        owners.append(Owner.make(b"i" * 16, (), native, keys))
    part = Part(owners[0], READ)
    assert [part.remote_index(owner) for owner in owners] == [0, 1, 2]
    packed = part.remotes()
    remotes = [NATIVE.unpack_from(packed, i * NATIVE.size) for i in range(3)]
    assert [fields[-2:] for fields in remotes] == [(0, 1), (0, 0), (3, 1)]
    assert struct.unpack("<5I", part.keys()) == (10, 11, 12, 30, 31)
