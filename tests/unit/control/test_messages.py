"""What is said on the wire: it reads back, it is bounded, and any other bytes are a typed error."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.control import messages as m
from transport.errors import PeerRefused, VersionMismatch

IDENTITY = m.Identity(b"i" * 16, "trainer-0", 7, 64, ("unix:@a", "10.0.0.1:5000"))
HELLO = m.Hello(IDENTITY, b"n" * 32, None, True)
MESSAGES = [
    HELLO,
    m.Challenge(IDENTITY, b"n" * 32),
    m.Proven(b"p" * 32, b"body"),
    m.Refuse(m.DUPLICATE, "why"),
]
CONTROL = [m.Ask(1, "lookup", b"x"), m.Answer(1, True, b"y"), m.Tell("bye", b"")]


def inside(message):
    data = m.frame(message)
    (length,) = m.LENGTH.unpack(data[:4])
    assert length == len(data) - 4
    return data[4:]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_handshake_message_reads_back(message):
    assert m.decode_handshake(inside(message), type(message)) == message


@pytest.mark.parametrize("message", CONTROL)
def test_a_control_message_reads_back(message):
    assert m.decode_control(m.encode(message)) == message


@pytest.mark.parametrize("message", MESSAGES[:3])
def test_a_refusal_is_read_wherever_something_else_was_due(message):
    refusal = m.Refuse(m.CLOSING, "bye")
    assert m.decode_handshake(inside(refusal), type(message)) == refusal


def test_a_message_out_of_turn_is_named():
    with pytest.raises(PeerRefused, match="hello where challenge was due"):
        m.decode_handshake(inside(HELLO), m.Challenge)


@pytest.mark.parametrize(
    "changes",
    [
        {"incarnation": b"i" * 15},
        {"incarnation": b"i" * 17},
        {"name": "n" * 129},
        {"pid": -1},
        {"notify_depth": 0},
        {"notify_depth": 1 << 20},
        {"addresses": ("a:1",) * 17},
        {"addresses": ("a" * 301,)},
        {"name": 5},
    ],
)
def test_every_field_is_bounded(changes):
    identity = msgspec.structs.replace(IDENTITY, **changes)
    body = m.encode(m.Hello(identity, b"n" * 32, None, True))
    with pytest.raises(PeerRefused, match="undecodable"):
        m.decode_handshake(body, m.Hello)


def test_offers_are_bounded():
    offer = m.ProviderOffer("shm", b"", 0)
    for offers in (
        (offer,) * 9,
        (m.ProviderOffer("shm", b"", 17),),
        (m.ProviderOffer("", b"", 0),),
    ):
        with pytest.raises(PeerRefused):
            m.decode_proven(m.encode(m.Commit(True, offers)), m.Commit)
    assert m.decode_proven(m.encode(m.Commit(True, (offer,))), m.Commit).offers == (offer,)


def test_reasons_are_bounded():
    for reasons in ({f"p{n}": "" for n in range(9)}, {"verbs": "x" * 1025}, {"v" * 33: ""}):
        with pytest.raises(PeerRefused):
            m.decode_proven(m.encode(m.Commit(True, (), reasons)), m.Commit)
    without = msgspec.msgpack.encode((True, ()))  # as releases before this field say it
    assert m.decode_proven(without, m.Commit).reasons == {}


def test_our_own_messages_are_bounded_too():
    with pytest.raises(PeerRefused, match="over 65536"):
        m.frame(m.Proven(b"p" * 32, bytes(m.MAX_FRAME)))


@pytest.mark.parametrize("message", [*MESSAGES, *CONTROL])
def test_every_truncation_is_refused(message):
    whole = m.encode(message)
    for length in range(len(whole)):
        with pytest.raises(PeerRefused):
            m.decode_handshake(whole[:length], m.Hello)
        with pytest.raises(PeerRefused):
            m.decode_control(whole[:length])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_typed_error(data):
    for decode in (
        lambda: m.decode_handshake(data, m.Hello),
        lambda: m.decode_proven(data, m.Accept),
        lambda: m.decode_control(data),
    ):
        with contextlib.suppress(PeerRefused):
            decode()


@given(st.data())
def test_mutated_messages_are_a_message_or_a_typed_error(data):
    body = bytearray(m.encode(data.draw(st.sampled_from([*MESSAGES, *CONTROL]))))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    for decode in (m.decode_control, lambda b: m.decode_handshake(b, m.Challenge)):
        with contextlib.suppress(PeerRefused):
            decode(bytes(body))


def test_deep_nesting_is_refused():
    with pytest.raises(PeerRefused):
        m.decode_control(b"\x91" * m.MAX_CONTROL)


def test_the_preamble_tells_strangers_from_other_versions():
    m.check_preamble(m.PREAMBLE)
    with pytest.raises(VersionMismatch, match="does not speak"):
        m.check_preamble(b"HTTP/1.1")
    with pytest.raises(VersionMismatch, match=f"version 1, this engine {m.PROTOCOL_VERSION}"):
        m.check_preamble(m.PREAMBLE[:6] + b"\1\0")
    assert m.is_ours(m.PREAMBLE[:6] + b"\xff\xff")
    assert len(m.PREAMBLE) == m.PREAMBLE_BYTES == 8
