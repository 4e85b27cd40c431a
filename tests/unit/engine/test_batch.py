"""From requests to packed ranges: what C would get, carried out on plain memory."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_memory import Far, carry_out, ranges_of

from transport.engine.batch import READ, WRITE, Batch, Part, Read, Write
from transport.errors import InvalidUse, RemoteAccessError
from transport.memory.remote import NATIVE, Owner


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
    carry_out(batch)
    assert np.array_equal(local, expected)
    local += 1000
    batch = Batch()
    batch.add(local, far.remote[index], WRITE)
    carry_out(batch)
    assert np.array_equal(far.array[index], local)


@given(st.data())
def test_untyped_sides_are_in_c_order(data):
    far = Far(np.arange(60, dtype=np.int16).reshape(3, 4, 5))
    index = index_of(data.draw, (3, 4, 5))
    part = far.remote[index]
    buffer = bytearray(part.nbytes)
    batch = Batch()
    batch.add(buffer, part, READ)
    carry_out(batch)
    assert bytes(buffer) == far.array[index].tobytes()


def test_contiguous_sides_are_one_range():
    far = Far(np.zeros((10, 10), np.float32))
    batch = Batch()
    batch.add(torch.zeros(10, 10), far.remote, READ)
    (part,) = batch.parts()
    (found,) = ranges_of(part)
    assert found[2:5] == (0, 400, 1)


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
    found = [(p.owner.incarnation[:1], p.op, len(ranges_of(p)), len(p.owners)) for p in parts]
    assert found == [(b"i", READ, 3, 2), (b"i", WRITE, 1, 1), (b"j", READ, 1, 1)]
    assert [r[7] for r in ranges_of(parts[0])] == [0, 1, 0]
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
    carry_out(batch)
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
            number, 1, b"k" * 16, 0, length, 0, 0, 3, number, *[0] * 7, span, 0, 0, number % 2
        )
        keys = struct.pack(f"<{spans}I", *range(10 * number, 10 * number + spans))
        owners.append(Owner.make(b"i" * 16, (), native, keys))
    part = Part(owners[0], READ)
    assert [part.remote_index(owner) for owner in owners] == [0, 1, 2]
    packed = part.remotes()
    remotes = [NATIVE.unpack_from(packed, i * NATIVE.size) for i in range(3)]
    assert [fields[-2:] for fields in remotes] == [(0, 1), (0, 0), (3, 1)]
    assert struct.unpack("<5I", part.keys()) == (10, 11, 12, 30, 31)


def test_neighbours_are_one_range():
    """E3: a list of views that lie side by side on both sides costs C what one view costs."""
    far, local = Far(np.arange(1000, dtype=np.int32)), np.zeros(1000, np.int32)
    batch = Batch()
    for i in range(0, 500, 5):
        batch.add(local[i : i + 5], far.remote[i : i + 5], READ)
    batch.add(local[500:600], far.remote[600:700], READ)  # beside it on one side only
    batch.add(local[700:700], far.remote[700:700], READ)
    batch.add(local[600:700], far.remote[700:800], READ)
    carry_out(batch)
    assert np.array_equal(local[:500], far.array[:500])
    assert np.array_equal(local[500:700], far.array[600:800])
    (part,) = batch.parts()
    assert [(r[2], r[3]) for r in ranges_of(part)] == [(0, 2000), (2400, 800)]


def test_neighbours_of_two_handles_are_two_ranges():
    a, b = Far(np.zeros(8, np.uint8)), Far(np.zeros(8, np.uint8), number=2)
    local = bytearray(16)
    batch = Batch()
    batch.add(memoryview(local)[:8], a.remote, READ)
    batch.add(memoryview(local)[8:], b.remote[0:8], READ)
    batch.add(memoryview(local)[8:], b.remote[0:8], WRITE)
    assert [len(ranges_of(part)) for part in batch.parts()] == [2, 1]


def test_views_of_one_storage_are_looked_up_once():
    """E3: RDMA's registration is looked up by storage, not by view."""

    class Region:
        def __init__(self, tensor):
            self.start = tensor.data_ptr()
            self.end = self.start + tensor.nbytes

    tensors = [torch.zeros(100, 4), torch.zeros(100, 4)]
    asked = []

    def register(view, pins):
        asked.append(view)
        at = next(i for i, t in enumerate(tensors) if view.owner._base is t)
        pins.append(Region(tensors[at]))
        return at + 1

    far = Far(np.zeros((100, 4), np.float32))
    batch = Batch(lambda _: register)
    for tensor in tensors:
        for i in range(0, 100, 2):
            batch.add(tensor[i], far.remote[i], READ)
        batch.add(tensor[::2], far.remote[::2], READ)
    assert len(asked) == 2
    (part,) = batch.parts()
    assert [r[1] for r in ranges_of(part)] == [1] * 51 + [2] * 51


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_any_rank_is_one_range(rank):
    """E1: what is not contiguous is described without a look at each row."""
    far = Far(np.zeros((3,) * rank, np.float64))
    batch = Batch()
    batch.add(np.zeros((6,) * rank)[(slice(None, None, 2),) * rank], far.remote, READ)
    (part,) = batch.parts()
    assert len(part.ranges) == 1
