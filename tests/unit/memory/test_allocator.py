"""The free lists of a segment against the obvious model: a map of used bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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
