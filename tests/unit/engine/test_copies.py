"""Copies given by arrays: what C would get, carried out on plain memory, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_memory import Far, carry_out, ranges_of

from transport.engine.batch import OUTER, RANGE, READ, WRITE, Batch
from transport.engine.copies import Copies
from transport.engine.engine import Engine
from transport.engine.packing import OUTERS, RANGES, joined
from transport.errors import InvalidUse, OutOfRange, RemoteAccessError


def test_the_structs_are_those_that_c_takes():
    assert (RANGES.itemsize, OUTERS.itemsize) == (RANGE.size, OUTER.size)


def copies_of(op, locals_, remotes, boxes):
    """`boxes`: local, local view, remote, remote view, where both views have one shape."""
    d = max([box[1].ndim for box in boxes], default=0)
    n = len(boxes)
    deep = {name: np.ones((n, d), np.int64) for name in ("sizes", "here", "there")}
    flat = {name: np.zeros(n, np.int64) for name in ("local", "remote", "at", "far", "length")}
    for i, (local, part, remote, other) in enumerate(boxes):
        lead = d - part.ndim
        deep["sizes"][i, lead:] = part.shape
        deep["here"][i, lead:], deep["there"][i, lead:] = part.strides, other.strides
        flat["local"][i], flat["remote"][i] = local, remote
        flat["at"][i] = address(part) - address(locals_[local])
        flat["far"][i] = address(other) - address(remotes[remote].array)
        flat["length"][i] = part.itemsize
    return Copies(
        op,
        locals_,
        [far.remote for far in remotes],
        flat["local"],
        flat["remote"],
        flat["at"],
        flat["far"],
        flat["length"],
        deep["sizes"],
        deep["here"],
        deep["there"],
    )


def address(array):
    return array.__array_interface__["data"][0]


@st.composite
def boxes(draw):
    """Memories on both sides, with dimensions in any order here, and a box of each pair."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=5)))
    order = draw(st.permutations(range(len(shape))))
    bounds = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    local = np.zeros([shape[k] for k in order], np.int16).transpose(np.argsort(order))
    return shape, local, tuple(slice(low, high) for low, high in bounds)


@given(st.lists(boxes(), max_size=5))
def test_boxes_between_any_memories_of_any_peers(drawn):
    fars, locals_, boxes = [], [], []
    for k, (shape, local, box) in enumerate(drawn):
        array = np.arange(1, local.size + 1, dtype=np.int16).reshape(shape)
        fars.append(Far(array, number=k, incarnation=bytes([k // 2]) * 16))
        locals_.append(local)
        boxes.append((k, local[(..., *box)], k, array[(..., *box)]))
    batch = Batch()
    batch.add_request(copies_of(READ, locals_, fars, boxes))
    carry_out(batch)
    for (_, local, box), far in zip(drawn, fars):
        expected = np.zeros_like(far.array)
        expected[box] = far.array[box]
        assert np.array_equal(local, expected)
        local += 1000
        far.expected = far.array.copy()
        far.expected[box] = local[box]
    batch = Batch()
    batch.add_request(copies_of(WRITE, locals_, fars, boxes))
    carry_out(batch)
    assert all(np.array_equal(far.array, far.expected) for far in fars)


def test_dimensions_that_continue_each_other_are_one():
    far = Far(np.arange(2 * 3 * 4 * 5, dtype=np.int32).reshape(2, 3, 4, 5))
    local = np.zeros((2, 3, 4, 5), np.int32)
    batch = Batch()
    whole, half = (0, local, 0, far.array), (0, local[:, :2], 0, far.array[:, :2])
    batch.add_request(copies_of(READ, [local], [far], [whole, half]))
    (part,) = batch.parts()
    (_, _, _, length, rows, *_), (_, _, _, shorter, two, *_) = ranges_of(part)
    assert (length, rows, shorter, two, part.n_outers) == (480, 1, 160, 2, 0)


def test_copies_and_other_requests_share_a_batch():
    """The outer dimensions of both lie in one table."""
    far = Far(np.arange(3 * 4 * 5 * 6, dtype=np.int16).reshape(3, 4, 5, 6))
    cut = np.s_[:2, 1:3, 1:4, 2:5]
    first, second = np.zeros((2, 2, 3, 3), np.int16), np.zeros((2, 2, 3, 3), np.int16)
    third = np.zeros_like(first)
    batch = Batch()
    batch.add(first, far.remote[cut], READ)
    batch.add_request(copies_of(READ, [second], [far], [(0, second, 0, far.array[cut])]))
    batch.add(third, far.remote[cut], READ)
    carry_out(batch)
    assert all(np.array_equal(it, far.array[cut]) for it in (first, second, third))
    assert len(batch.pins) == 3


def simple(n=4, **changes):
    """n copies of 8 bytes, side by side."""
    far, local = Far(np.arange(8 * n, dtype=np.uint8)), np.zeros(8 * n, np.uint8)
    array = far.array
    boxes = [(0, local[8 * i :][:8], 0, array[8 * i :][:8]) for i in range(n)]
    copies = copies_of(READ, [local], [far], boxes)
    return dataclasses.replace(copies, **changes)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"remote_start": [0, 8, 25, 16]}, OutOfRange, "copy 2: bytes 25 to 33 of the remote side"),
        ({"local_start": [0, -1, 0, 0]}, OutOfRange, "copy 1: bytes -1 to 7 of the local side"),
        ({"local_strides": [[1], [1], [1], [4]]}, OutOfRange, "copy 3: bytes 24 to 53 of the l"),
        ({"remote_strides": [[1], [-1], [1], [1]], "remote_start": [0, 6, 0, 0]}, OutOfRange, "1"),
        ({"length": [1, 1 << 62, 1, 1]}, OutOfRange, "copy 1 is longer than any memory"),
        ({"local_strides": [[1], [1], [1 << 62], [1]]}, OutOfRange, "copy 2 is longer"),
        ({"length": [1, -1, 1, 1]}, InvalidUse, "negative size"),
        ({"sizes": [[8], [8], [-8], [8]]}, InvalidUse, "negative size"),
        ({"local_index": [0, 0, 1, 0]}, OutOfRange, "`local_index` of a copy is outside the 1"),
        ({"remote_index": [0, -1, 0, 0]}, OutOfRange, "`remote_index`"),
        ({"length": [1, 1, 1]}, InvalidUse, r"`local_index` of the copies is int64\[4\]"),
    ],
)
def test_what_is_wrong_is_refused(changes, error, words):
    arrays = {name: np.array(values, np.int64) for name, values in changes.items()}
    with pytest.raises(error, match=words):
        Batch().add_request(simple(**arrays))


def test_numbers_of_another_kind_are_refused():
    with pytest.raises(InvalidUse, match=r"`length` of the copies is int32\[4\]"):
        Batch().add_request(simple(length=np.ones(4, np.int32)))


def test_copies_that_are_empty_need_no_place():
    batch = Batch()
    batch.add_request(simple(sizes=np.zeros((4, 1), np.int64), local_start=np.full(4, 1 << 60)))
    assert batch.parts() == []


def test_too_many_dimensions_are_refused():
    far, local = Far(np.zeros((3,) * 9, np.uint8)), np.zeros((3,) * 9, np.uint8)
    cut = np.s_[(slice(2),) * 9]
    with pytest.raises(InvalidUse, match="more than 8 dimensions"):
        Batch().add_request(copies_of(READ, [local], [far], [(0, local[cut], 0, far.array[cut])]))


def test_rights_are_asked_for():
    far = Far(np.zeros(8, np.uint8), access=1)
    local = np.zeros(8, np.uint8)
    box = (0, local, 0, far.array)
    with pytest.raises(RemoteAccessError, match="allows to read only"):
        Batch().add_request(copies_of(WRITE, [local], [far], [box]))
    local.flags.writeable = False
    with pytest.raises(InvalidUse, match="read-only"):
        Batch().add_request(copies_of(READ, [local], [far], [box]))


def test_sizes_one_and_no_dimension():
    one = np.ones((3, 0), np.int64)
    assert joined(np.array([4, 5, 6]), one, one, one).length.tolist() == [4, 5, 6]


def test_a_prepared_one_knows_closed_regions_and_resized_tensors():
    import torch

    with Engine() as engine:
        source = np.arange(64, dtype=np.uint8)
        tensor = torch.zeros(64, dtype=torch.uint8)
        into = engine.register(np.zeros(64, np.uint8))
        region = engine.register(source, access="read")
        table = simple(2)
        args = {"remote": [region.remote()], "local": [tensor, into]}
        copies = dataclasses.replace(table, local_index=np.array([0, 1]), **args)
        with engine.prepare(copies) as prepared:
            prepared.run()
            assert tensor[:8].tolist() == list(range(8))
            assert into.local_view().owner[8:16].tolist() == list(range(8, 16))
            into.close()
            with pytest.raises(InvalidUse, match="local region is closed"):
                prepared.run()
        with engine.prepare(dataclasses.replace(table, **{**args, "local": [tensor]})) as prepared:
            tensor.resize_(1 << 20)
            with pytest.raises(InvalidUse, match="resized"):
                prepared.start()
