"""The free lists of a segment against the obvious model: a map of used bytes."""

from __future__ import annotations

import contextlib
import itertools
import sys
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from transport.memory import allocator as allocator_module
from transport.memory.allocator import PAGE, SMALL_ALIGNMENT, Allocator, alignment_of, rounded

SIZE = 64 * PAGE


class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.allocator = Allocator(SIZE)
        self.blocks: dict[int, int] = {}

    @rule(size=st.one_of(st.integers(0, 300), st.integers(1, 20 * PAGE)))
    def take(self, size):
        start = self.allocator.take(size)
        if start is None:
            assert not self.fits(size)
            return
        assert start % alignment_of(size) == 0
        length = rounded(size)
        assert start + length <= SIZE
        for other, taken in self.blocks.items():
            assert start + length <= other or other + taken <= start
        self.blocks[start] = length

    @rule(data=st.data())
    def give_back(self, data):
        if self.blocks:
            start = data.draw(st.sampled_from(sorted(self.blocks)))
            assert self.allocator.give_back(start) == self.blocks.pop(start)

    def fits(self, size):
        edges = sorted([(0, 0), *((s, s + n) for s, n in self.blocks.items()), (SIZE, SIZE)])
        step = alignment_of(size)
        return any(
            -(-end // step) * step + rounded(size) <= start
            for (_, end), (start, _) in pairwise(edges)
        )

    @invariant()
    def adds_up(self):
        assert self.allocator.free_bytes == SIZE - sum(self.blocks.values())
        assert self.allocator.used == self.blocks


TestMachine = Machine.TestCase


@given(st.lists(st.integers(1, 4 * PAGE), max_size=40))
def test_all_comes_back_as_one_block(sizes):
    allocator = Allocator(SIZE)
    starts = [s for s in map(allocator.take, sizes) if s is not None]
    for start in sorted(starts, key=lambda s: s % 7):
        allocator.give_back(start)
    assert allocator.take(SIZE) == 0


def test_large_blocks_never_share_a_page_with_small_ones():
    allocator = Allocator(SIZE)
    small, large = allocator.take(10), allocator.take(PAGE + 1)
    assert small == 0
    assert large == PAGE
    assert rounded(PAGE + 1) == 2 * PAGE
    assert rounded(0) == SMALL_ALIGNMENT


def test_what_was_interrupted_between_any_two_steps_is_mended():
    """As Ctrl-C does it: an exception out of nowhere, line by line."""
    for step in range(60):
        allocator = Allocator(SIZE)
        blocks = [allocator.take(PAGE) for _ in range(4)]
        allocator.give_back(blocks[1])
        with contextlib.suppress(KeyboardInterrupt), _interrupted(step):
            allocator.take(64)
            allocator.give_back(blocks[2])
        allocator.take(1)  # whatever came first is mended now
        for start in list(allocator.used):
            allocator.give_back(start)
        assert allocator.free_bytes == SIZE
        assert allocator.take(SIZE) == 0


@contextlib.contextmanager
def _interrupted(step):
    """Raises KeyboardInterrupt at the so many-th line of the allocator that runs."""
    left = itertools.count(step, -1)

    def trace(frame, event, _):
        if frame.f_code.co_filename != allocator_module.__file__:
            return None
        if event == "line" and next(left) == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
