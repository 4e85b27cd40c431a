"""Boards of one process: what is said, to whom, and what no sheet can show."""

from __future__ import annotations

import mmap

import pytest

pytest.importorskip("torch")

from transport.collectives.onesided.board import MOST_RANKS, Board, sheet_bytes
from transport.errors import InvalidUse, PeerError
from transport.ffi import ffi

RANKS = 3
SIZE = sheet_bytes(RANKS)


class Seats:
    """Three boards that see each other. The sheets are theirs."""

    def __init__(self):
        self.sheets = [mmap.mmap(-1, SIZE) for _ in range(RANKS)]
        self._held = [ffi.from_buffer(sheet) for sheet in self.sheets]
        at = [int(ffi.cast("uintptr_t", each)) for each in self._held]
        self.boards = [Board(address, rank, RANKS) for rank, address in enumerate(at)]
        for rank, board in enumerate(self.boards):
            for peer in {0, 1, 2} - {rank}:
                board.attach(peer, at[peer])


@pytest.fixture
def seats():
    made = Seats()
    yield made
    for board in made.boards:
        board.close()
        board.close()


def test_each_hears_what_is_for_it(seats):
    first, second, third = seats.boards
    assert first.post([1, 2], b"to both") == []
    assert first.post([2], b"to the third") == []
    assert third.post([1], b"") == []
    assert sorted([second.take(), second.take()]) == [(0, b"to both"), (2, b"")]
    assert second.take() is None
    assert [third.take(), third.take()] == [(0, b"to both"), (0, b"to the third")]
    third.wait(0.001)
    assert third.take() is first.take() is None


def test_nothing_is_lost_where_there_is_no_room(seats):
    first, second, third = seats.boards
    said = 0
    while not first.post([1], said.to_bytes(4, "little")):
        said += 1
    assert said > 64
    assert first.post([1, 2], b"") == [1], "the third has room"
    assert third.take() == (0, b"")
    assert [int.from_bytes(second.take()[1], "little") for _ in range(said)] == list(range(said))
    assert first.post([1], b"") == []


def test_sheets_that_cannot_be(seats):
    first, second, _ = seats.boards
    first.post([1], b"x")
    seats.sheets[0][320:] = b"\xff" * (SIZE - 320)  # what it has read, and what was said
    rank, payload = second.take()
    assert rank == 0
    assert len(payload) == 1008
    seats.sheets[0][64:72] = b"\xff" * 8  # how much was said to each
    with pytest.raises(PeerError, match="rank 0"):
        second.take()
    assert second.take() is None


def test_what_no_board_is():
    memory = ffi.new("uint8_t[]", 64)
    address = int(ffi.cast("uintptr_t", memory))
    for rank, ranks in ((0, MOST_RANKS + 1), (2, 2)):
        with pytest.raises(InvalidUse, match="64 ranks"):
            Board(address - address % 64, rank, ranks)


def test_a_message_that_is_too_long(seats):
    with pytest.raises(InvalidUse, match="1008 bytes"):
        seats.boards[0].post([1], bytes(1009))
