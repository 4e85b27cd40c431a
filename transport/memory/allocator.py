"""Which bytes of a segment are free: best fit over address-ordered free blocks. Pure arithmetic.

Small blocks are aligned to 64 bytes (a cache line, and torch's own alignment), large ones to pages,
so that pages can be given back and two tensors never share one.
"""

from __future__ import annotations

from bisect import bisect_left, insort

SMALL_ALIGNMENT = 64
PAGE = 4096


def alignment_of(size: int) -> int:
    """Alignment of a block of this many bytes."""
    return PAGE if size >= PAGE else SMALL_ALIGNMENT


def rounded(size: int) -> int:
    """What a block of `size` bytes takes: a whole number of its alignment, at least one."""
    step = alignment_of(size)
    return max(step, -(-size // step) * step)


class Allocator:
    """Free and used blocks of `size` bytes. Not thread-safe; the pool holds a lock."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_bytes = size
        self.used: dict[int, int] = {}  # start -> length; what the rest follows from
        self._torn = False  # Ctrl-C may come between any two steps of a change
        self._by_size: list[tuple[int, int]] = [(size, 0)] if size else []  # (length, start)
        self._by_start: dict[int, int] = {0: size} if size else {}
        self._by_end: dict[int, int] = {size: 0} if size else {}

    def take(self, size: int) -> int | None:
        """Start of a new block of rounded(size) bytes, or None where none fits."""
        self._mend()
        length, alignment = rounded(size), alignment_of(size)
        for i in range(bisect_left(self._by_size, (length, 0)), len(self._by_size)):
            free, start = self._by_size[i]
            begin = -(-start // alignment) * alignment
            if begin + length <= start + free:
                self._carve(start, free, begin, length)
                return begin
        return None

    def give_back(self, start: int) -> int:
        """Frees the block that begins at `start`; returns its length."""
        self._mend()
        self._torn = True
        length = self.used.pop(start)
        self.free_bytes += length
        begin, end = start, start + length
        if begin in self._by_end:
            begin = self._forget(self._by_end[begin])
        if end in self._by_start:
            end += self._by_start[end]
            self._forget(start + length)
        self._remember(begin, end - begin)
        self._torn = False
        return length

    def _carve(self, start: int, free: int, begin: int, length: int) -> None:
        self._torn = True
        self._forget(start)
        if begin > start:
            self._remember(start, begin - start)
        if begin + length < start + free:
            self._remember(begin + length, start + free - begin - length)
        self.used[begin] = length
        self.free_bytes -= length
        self._torn = False

    def _mend(self) -> None:
        """After a change that was interrupted: what is free is what lies between the used."""
        if not self._torn:
            return
        self._by_size, self._by_start, self._by_end = [], {}, {}
        at = 0
        for start, length in [*sorted(self.used.items()), (self.size, 0)]:
            if start > at:
                self._remember(at, start - at)
            at = start + length
        self.free_bytes = self.size - sum(self.used.values())
        self._torn = False

    def _remember(self, start: int, length: int) -> None:
        insort(self._by_size, (length, start))
        self._by_start[start] = length
        self._by_end[start + length] = start

    def _forget(self, start: int) -> int:
        length = self._by_start.pop(start)
        del self._by_end[start + length]
        del self._by_size[bisect_left(self._by_size, (length, start))]
        return start
