"""The arithmetic of one-sided collectives: trees, places in the arena, chunks; hostile messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.collectives.onesided import tree
from transport.collectives.onesided.message import (
    MAX_INLINE,
    Message,
    What,
    decode,
    encode,
)
from transport.errors import PeerError, Unavailable

torch = pytest.importorskip("torch")


@given(hosts=st.lists(st.sampled_from("abc"), min_size=1, max_size=40), data=st.data())
def test_a_tree_reaches_every_rank_once_and_each_host_by_one_copy(hosts, data):
    root = data.draw(st.integers(0, len(hosts) - 1))
    nodes = tree.nodes(hosts, root)
    assert nodes[root].parent == -1
    reached, level = [], [root]
    while level:
        reached += level
        level = [child for rank in level for child in nodes[rank].children]
    assert sorted(reached) == list(range(len(hosts)))
    between = [
        n.parent for r, n in enumerate(nodes) if n.parent >= 0 and hosts[n.parent] != hosts[r]
    ]
    assert len(between) == len(set(hosts)) - 1


def test_a_few_ranks_of_one_host_all_pull_from_the_root():
    nodes = tree.nodes(["a"] * tree.FLAT, 2)
    assert len(nodes[2].children) == tree.FLAT - 1
    assert tree.depth(nodes, 2) == 1
    assert tree.depth(tree.nodes(["a"] * 30, 0), 0) > 1


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=80))
def test_places_of_the_ring_never_overlap(steps):
    from transport.collectives.onesided.arena import Ring

    ring, taken, number = Ring(1024), {}, 0
    for size, giving in steps:
        if giving and taken:
            oldest = min(taken)
            ring.give_back(oldest + 1)
            del taken[oldest]
        start = ring.take(number, size)
        if start is None:
            assert taken, "an empty ring has room"
            continue
        assert start + size <= 1024
        assert all(start + size <= low or high <= start for low, high in taken.values())
        taken[number] = start, start + size
        number += 1


def test_a_ring_takes_nothing_that_is_larger_than_it():
    from transport.collectives.onesided.arena import Ring

    assert Ring(1024).take(0, 1025) is None
    assert Ring(1024).take(0, 1024) == 0


@given(nbytes=st.integers(0, 10_000), count=st.integers(1, 9))
def test_chunks_of_ranks_are_the_whole(nbytes, count):
    from transport.collectives.onesided.reduces import chunks

    found = chunks(nbytes, count)
    assert [low for low, _ in found][1:] == [high for _, high in found][:-1]
    assert (found[0][0], found[-1][1], len(found)) == (0, nbytes, count)
    assert all(low % 64 == 0 or low == nbytes for low, _ in found)


@given(st.binary(max_size=200))
def test_noise_is_no_message(data):
    try:
        found = decode(data)
    except PeerError:
        return
    assert isinstance(found, Message)


@pytest.mark.parametrize(
    "message",
    [
        Message(What.OFFER, 0),
        Message(What.OFFER, 0, size=1, inline=b"ab"),
        Message(What.OFFER, 0, size=1, inline=b"a", at=3),
        Message(What.OFFER, -1, size=1, inline=b"a"),
        Message(What.OFFER, 0, size=1, native=b"x" * 300),
    ],
)
def test_an_offer_that_cannot_be_is_refused(message):
    with pytest.raises(PeerError):
        decode(encode(message))


def test_a_handle_that_names_no_memory_is_refused():
    from transport.memory.remote import NATIVE, Owner, RemoteRegion

    native = NATIVE.pack(1, 1, b"k" * 16, 4096, 64, 0, 0, 3, *[0] * 8, 0, 0, 0, 0)
    door = RemoteRegion(Owner.make(b"i" * 16, (), native), 0, None, (64,))
    assert Message(What.OFFER, 0, size=64, native=native).region(door).nbytes == 64
    for bad in (
        Message(What.OFFER, 0, size=65, native=native),
        Message(What.OFFER, 0, size=64, offset=1, native=native),
        Message(What.OFFER, 0, size=64, native=native[:-1]),
    ):
        with pytest.raises(PeerError):
            bad.region(door)


def test_a_message_has_room_for_what_travels_within_it():
    full = Message(What.OFFER, 1 << 62, number=1 << 62, tag=-(1 << 60), phase=1 << 20,
                   text="reduce_scatter 9223372036854775807 complex128 premultiplied root 1000",
                   size=MAX_INLINE, inline=b"x" * MAX_INLINE)  # fmt: skip
    assert decode(encode(full)) == full
    with pytest.raises(Unavailable):
        encode(Message(What.OFFER, 0, size=1, native=b"n" * 200, keys=b"k" * 900))
