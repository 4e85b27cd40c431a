"""What comes on a link is hostile until it is checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import InvalidUse, PeerRefused
from transport.mesh import messages as m


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_message_or_refused(data):
    try:
        message = m.decode(data)
    except PeerRefused:
        return
    assert isinstance(message, m.Message)


@given(st.binary(min_size=m.HEAD.size, max_size=m.HEAD.size))
def test_lengths_are_within_bounds_or_refused(head):
    try:
        message, body = m.lengths(head)
    except PeerRefused:
        return
    assert 0 < message <= m.MAX_MESSAGE
    assert 0 <= body <= m.MAX_BODY


NUMBERS = st.integers(0, (1 << 63) - 1)
NAMES = st.text(min_size=1, max_size=30)


@given(NUMBERS, NUMBERS, NAMES, st.floats(0, allow_nan=False), st.binary(max_size=100))
def test_a_frame_gives_back_what_was_said(number, actor, method, left, body):
    call = m.Call(number, actor, method, left)
    frame = m.frame(call, len(body))
    message, length = m.lengths(frame[: m.HEAD.size])
    assert length == len(body)
    assert m.decode(frame[m.HEAD.size : m.HEAD.size + message]) == call


@pytest.mark.parametrize(
    "message",
    [
        m.Call(1, 2, "", 1.0),
        m.Call(-1, 2, "step", 1.0),
        m.Call(1, 1 << 63, "step", 1.0),
        m.Call(1, 2, "x" * 257, 1.0),
        m.Welcome(b"short", "mesh", 0, ()),
        m.Welcome(bytes(16), "mesh", 0, (("rank", 0),)),
        m.Welcome(bytes(16), "mesh", 0, (("rank", 1),) * 17),
    ],
)
def test_what_is_out_of_bounds_is_refused(message):
    try:
        data = m.frame(message)[m.HEAD.size :]
    except OverflowError:
        return
    with pytest.raises(PeerRefused):
        m.decode(data)


def test_too_large_a_value_is_the_callers_mistake():
    with pytest.raises(InvalidUse, match="tensors"):
        m.frame(m.Answer(1, True), m.MAX_BODY + 1)
    with pytest.raises(InvalidUse, match="message"):
        m.frame(m.Call(1, 2, "x" * (m.MAX_MESSAGE + 1), 1.0))
