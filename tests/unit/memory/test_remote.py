"""A remote region as plain data: encodings, slices, hostile bytes."""

from __future__ import annotations

import copy
import json
import pickle
import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import InvalidUse, OutOfRange
from transport.memory.remote import NATIVE, Owner, RemoteRegion
from transport.types import Access


def owner(length=4096, access=3, key=b"k" * 16, incarnation=b"i" * 16, address=0x1000):
    native = NATIVE.pack(7, 9, key, address, length, 0, 0xFFFFFFFF, access, *range(8), 0, 0, 0, 0)
    return Owner.make(incarnation, ("unix:@x", "10.0.0.1:80"), native)


def remote(shape=(8, 16), dtype="float32", **more):
    return RemoteRegion(owner(**more), 64, dtype, shape)


def test_facts():
    r = remote()
    assert (r.nbytes, r.shape, r.dtype, r.strides) == (512, (8, 16), "float32", (64, 4))
    assert (r.access, r.offset, len(r), r.contiguous) == (Access.READ_WRITE, 64, 8, True)
    assert r.addresses == ("unix:@x", "10.0.0.1:80")


ways = {
    "pickle": lambda r: pickle.loads(pickle.dumps(r)),
    "bytes": lambda r: RemoteRegion.from_bytes(r.to_bytes()),
    "json": lambda r: RemoteRegion.from_json(r.to_json()),
    "copy": copy.deepcopy,
}


@pytest.mark.parametrize("way", ways.values(), ids=ways.keys())
@pytest.mark.parametrize(
    "r",
    [remote(), remote((), "bool"), remote((0, 3)), remote((8, 16))[:, 2:5], remote((5,), None)],
    ids=repr,
)
def test_round_trips(way, r):
    back = way(r)
    assert back == r
    assert hash(back) == hash(r)
    assert (back.shape, back.strides, back.contiguous) == (r.shape, r.strides, r.contiguous)
    assert (back.addresses, back.access, back.nbytes) == (r.addresses, r.access, r.nbytes)


def test_pickled_slices_share_their_owner():
    r = remote((1000,), "uint8")
    parts = pickle.loads(pickle.dumps([r[i : i + 1] for i in range(1000)]))
    assert len({id(part._owner) for part in parts}) == 1
    assert len(pickle.dumps([r[i : i + 1] for i in range(1000)])) < 50_000


def test_json_is_an_object_with_the_key_as_text():
    value = json.loads(remote().to_json())
    assert value["incarnation"] == (b"i" * 16).hex()
    assert value["strides"] is None


def test_repr_does_not_show_the_key():
    text = repr(remote(key=b"\xab" * 16))
    assert "abab" not in text
    assert "float32[8, 16]" in text


def test_equality_is_by_value():
    assert remote() == remote()
    assert remote() != remote(key=b"x" * 16)
    assert remote() != remote((8, 8))
    assert remote() != 3


@given(st.binary(max_size=300))
def test_hostile_bytes_raise_invalid_use_only(data):
    with pytest.raises(InvalidUse):
        RemoteRegion.from_bytes(data)


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_yields_a_sound_region(at, value):
    data = bytearray(remote()[:, 2:5].to_bytes())
    data[at % len(data)] = value
    try:
        r = RemoteRegion.from_bytes(data)
    except InvalidUse:
        return
    assert 0 <= r.offset <= r._owner.length


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"keys": "00000000"},
        {"keys": "z"},
        {"dtype": "float33"},
        {"shape": [-1]},
        {"shape": [1 << 63]},
        {"shape": [1] * 65},
        {"shape": [2000]},
        {"offset": -1},
        {"offset": 1 << 40},
        {"strides": [4]},
        {"strides": [-64, 4]},
        {"incarnation": "00"},
        {"native": "00"},
        {"native": "zz"},
        {"addresses": ["x"] * 65},
        {"addresses": ["x" * 600]},
        {"more": 1},
    ],
    ids=str,
)
def test_unsound_json_is_refused(change):
    value = {**json.loads(remote().to_json()), **change}
    with pytest.raises(InvalidUse):
        RemoteRegion.from_json(json.dumps(value))


@pytest.mark.parametrize("access", [0, 4, 7])
def test_unknown_access_is_refused(access):
    with pytest.raises(InvalidUse):
        owner(access=access)


def test_region_beyond_the_address_space_is_refused():
    with pytest.raises(InvalidUse):
        owner(address=(1 << 64) - 1, length=2)


# ------------------------------------------------------------------------------------------ slices
array = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)

indices = [
    0,
    -1,
    slice(2, 5),
    slice(None),
    slice(8, 8),
    slice(1, 8, 3),
    slice(None, None, -1),
    slice(-3, None),
    (2, 3),
    (slice(None), 5),
    (slice(1, 3), slice(4, 16, 2)),
    (..., slice(0, 4)),
    (..., 1),
    ...,
    (),
]


@pytest.mark.parametrize("index", indices, ids=str)
def test_indexing_matches_numpy(index):
    part = remote()[index]
    expected = array[index]
    assert part.shape == expected.shape
    at = (part.offset - 64) // 4
    if expected.size:
        assert array.reshape(-1)[at] == expected.reshape(-1)[0]
        shown = np.lib.stride_tricks.as_strided(array.reshape(-1)[at:], part.shape, part.strides)
        assert np.array_equal(shown, expected)
    assert part.nbytes == expected.nbytes


@pytest.mark.parametrize("index", [8, -9, slice(0, 9), slice(9, None), (0, 16), (0, 0, 0)], ids=str)
def test_outside_is_refused_not_clamped(index):
    with pytest.raises(OutOfRange) as caught:
        remote()[index]
    assert isinstance(caught.value, IndexError)
    assert isinstance(caught.value, InvalidUse)


@pytest.mark.parametrize("index", ["x", 1.5, None, (..., ...)], ids=str)
def test_other_indices_are_refused(index):
    with pytest.raises((InvalidUse, TypeError)):
        remote()[index]


def test_slices_of_slices():
    part = remote()[2:6][1:3][0, 4:8]
    assert part == remote()[3, 4:8]


def test_iterating_gives_the_leading_dimension():
    assert list(remote((3, 2))) == [remote((3, 2))[i] for i in range(3)]


def test_bytes():
    part = remote().bytes(4, 12)
    assert (part.nbytes, part.dtype, part.offset) == (8, None, 68)
    assert remote().bytes().nbytes == 512
    assert remote().bytes(512).nbytes == 0
    assert part[2:4] == remote().bytes(6, 8)
    for start, stop in [(-1, 4), (0, 513), (5, 4)]:
        with pytest.raises(OutOfRange):
            remote().bytes(start, stop)
    with pytest.raises(InvalidUse):
        remote()[:, 1:2].bytes()


def test_a_scalar_has_no_length():
    with pytest.raises(InvalidUse):
        len(remote(()))


@pytest.mark.parametrize("bounds", [(0.5, 2), ("a", 2), (0, 1.0), (None, 2)])
def test_bytes_are_counted_in_whole_numbers(bounds):
    with pytest.raises(InvalidUse, match="no index"):
        remote().bytes(*bounds)


@pytest.mark.parametrize("index", [slice(0.5, 2), slice("a", None), slice(None, None, 0)])
def test_slices_that_are_none(index):
    with pytest.raises(InvalidUse):
        remote()[index]


# ------------------------------------------------------------------------------------- key tables
def native_with_keys(length=10_000, span=4096, rkeys=(5, 0, 6), skew=0, keys_at=0, memory=0):
    rkeys = (*rkeys, *[0] * (8 - len(rkeys)))
    return NATIVE.pack(
        7, 9, b"k" * 16, 0x1000, length, 0, 0xFFFFFFFF, 3, *rkeys, span, skew, keys_at, memory
    )


KEYS = struct.pack("<6I", 5, 51, 52, 6, 61, 62)  # three spans on each of two rails


def split(**more):
    return Owner.make(b"i" * 16, (), native_with_keys(**more), KEYS)


@pytest.mark.parametrize("way", ways.values(), ids=ways.keys())
def test_a_key_table_travels(way):
    """B1: a region above the device's limit has a key for each part of it."""
    whole = RemoteRegion(split(), 16, None, (9000,))
    back = way(whole[100:200])
    assert back == whole[100:200]
    assert back._owner.keys == KEYS
    other = Owner.make(b"i" * 16, (), native_with_keys(), KEYS[:-1] + b"x")
    assert RemoteRegion(other, 16, None, (9000,)) != whole


@pytest.mark.parametrize(
    "change",
    [
        {"span": 0},
        {"span": 1},
        {"span": 4095},
        {"span": 5000},
        {"span": 1 << 63, "length": 1 << 62},
        {"length": 4096},
        {"length": (1 << 64) - 0x1000},
        {"rkeys": (0,)},
        {"rkeys": (1, 2, 3)},
        {"keys_at": 1},
        {"skew": 4096},
        {"skew": 4000},  # a span more than the table has
        {"memory": 3},
    ],
    ids=str,
)
def test_a_key_table_of_another_size_is_refused(change):
    with pytest.raises(InvalidUse):
        split(**change)


def test_the_largest_key_table_is_refused_beyond_its_bound():
    native = native_with_keys(length=4096 * 8193, rkeys=(1,))
    with pytest.raises(InvalidUse, match="key table"):
        Owner.make(b"i" * 16, (), native, bytes(4 * 8193))
    native = native_with_keys(length=4096 * 8192, rkeys=(1,))
    region = RemoteRegion(Owner.make(b"i" * 16, (), native, bytes(4 * 8192)), 0, None, (10,))
    for way in ways.values():
        assert way(region) == region


def test_a_handle_of_another_version_is_named_so():
    with pytest.raises(InvalidUse, match="version 1 is not 3"):
        RemoteRegion.from_bytes(msgspec.msgpack.encode([1, b"i" * 16, [], b"n" * 96, 0, None, []]))
