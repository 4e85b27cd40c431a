"""Messages between the ranks of one machine, in the mapped memory of their arenas.

May import ffi and errors. To say something is a copy, where a notification is a transfer. Used by
one thread at a time, but for `wait`, which one thread has at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.errors import PeerError, Status
from transport.ffi import check, ffi, last_error, lib

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_RANKS = int(lib.TN_BOARD_RANKS)


def sheet_bytes(ranks: int) -> int:
    """Of each rank's sheet, in a group of so many."""
    return int(lib.tn_board_bytes(ranks))


class Board:
    """This rank's. `address` is that of its sheet, which outlives it."""

    def __init__(self, address: int, rank: int, ranks: int) -> None:
        out: Any = ffi.new("struct tn_board **")
        check(lib.tn_board_open(ffi.cast("void *", address), rank, ranks, out))
        self._pointer: Any = out[0]
        self._missed: Any = ffi.new("uint64_t *")
        self._from: Any = ffi.new("uint32_t *")
        self._length: Any = ffi.new("uint32_t *")
        self._bytes: Any = ffi.new("uint8_t[]", int(lib.TN_BOARD_MESSAGE))
        self._memory = ffi.buffer(self._bytes)

    def attach(self, rank: int, address: int) -> None:
        """From now on what that rank says is heard; its sheet is mapped there, and stays."""
        check(lib.tn_board_attach(self._pointer, rank, ffi.cast("void *", address)))

    def post(self, ranks: Iterable[int], payload: bytes) -> list[int]:
        """To ranks that have attached this one's sheet. Returns those that have too much to read
        and got nothing."""
        to = 0
        for rank in ranks:
            to |= 1 << rank
        check(lib.tn_board_post(self._pointer, to, payload, len(payload), self._missed))
        missed = self._missed[0]
        return [rank for rank in ranks if missed >> rank & 1] if missed else []

    def take(self) -> tuple[int, bytes] | None:
        """What a rank said that has not been taken. Raises PeerError for a sheet that cannot be."""
        status = lib.tn_board_take(self._pointer, self._from, self._bytes, self._length)
        if status == Status.AGAIN:
            return None
        if status != Status.OK:
            raise PeerError(last_error())
        return int(self._from[0]), bytes(self._memory[: self._length[0]])

    def wait(self, timeout: float) -> None:
        """Until there is something to take, or so many seconds."""
        lib.tn_board_wait(self._pointer, int(timeout * 1e9))

    def close(self) -> None:
        """Once nobody waits. Idempotent."""
        pointer, self._pointer = self._pointer, ffi.NULL
        lib.tn_board_close(pointer)
