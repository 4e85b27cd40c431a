"""What is kept of a process's output for the cause of its end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transport.mesh.hosts import nest
from transport.mesh.hosts.output import Kept

LINES = st.lists(
    st.builds(str.__mul__, st.sampled_from("x\u65e5\U0001f600"), st.integers(0, nest.MAX_LINE)),
    max_size=80,
)


@given(LINES, LINES)
def test_the_last_lines_are_kept_and_fit_into_a_message(first: list[str], second: list[str]):
    kept = Kept()
    kept.add(first)
    kept.add(second)
    said, lines = first + second, kept.lines
    count = len(lines)
    assert lines == tuple(said[len(said) - count :])
    ended = nest.encode(nest.Ended(1 << 60, None, 9, lines))
    assert len(ended) <= nest.KEPT_BYTES + 1024
    if count < min(len(said), nest.KEPT_LINES):  # one more would be too much
        more = said[len(said) - count - 1 :]
        assert sum(len(line.encode()) for line in more) > nest.KEPT_BYTES
