"""Further sockets of a link: who may join it, and what whoever may not can do."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from control_planes import descriptors
from handshakes import both, channels, party, run, shake
from relay import wait_up

from transport.control import messages as m
from transport.control.address import parse
from transport.control.handshake import Refused
from transport.control.streams import LinkKey, accept, ask, check
from transport.errors import PeerLost, VersionMismatch

KEY, OTHER = LinkKey(b"k" * 32), LinkKey(b"o" * 32)


def join(key=KEY, number=1, role=b"opener"):
    return m.Join(key.name, number, key.proof(role, number))


async def admit(channel, key):
    """What the connector does on the accepting side."""
    m.check_preamble(await channel.read(m.PREAMBLE_BYTES))
    message = m.decode_handshake(await channel.read_frame(), m.Join)
    check(message, KEY if message.link == KEY.name else None, 0)
    await accept(channel, message, key)
    return message


def asked(key=KEY, theirs=KEY):
    with channels() as (left, right):
        return run(both(ask(left, key, 1), admit(right, theirs), left, right))


def test_both_ends_of_a_conversation_have_the_same_key_and_no_others():
    keys = [outcome.key for _ in range(2) for outcome in shake()]
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]
    assert len({*keys}) == 2
    assert len(keys[0]) == 32
    assert repr(keys[0]) not in repr(shake()[0])


def test_no_secret_no_key():
    ours, theirs = shake(party(b"a" * 16, None), party(b"b" * 16, None))
    assert ours.key is theirs.key is None


def test_a_socket_joins():
    found, message = asked()
    assert found is None
    assert message == join()


def test_an_answer_without_the_key_is_refused():
    found, _ = asked(theirs=OTHER)
    assert isinstance(found, Refused)
    assert found.code == m.SECRET


@pytest.mark.parametrize(
    ("message", "last", "code"),
    [
        (join(role=b"acceptor"), 0, m.SECRET),
        (m.Join(KEY.name, 1, OTHER.proof(b"opener", 1)), 0, m.SECRET),
        (m.Join(KEY.name, 2, KEY.proof(b"opener", 1)), 0, m.SECRET),
        (join(number=3), 3, m.SECRET),
        (join(number=2), 3, m.SECRET),
    ],
)
def test_what_does_not_belong_to_the_link(message, last, code):
    with pytest.raises(Refused) as caught:
        check(message, KEY, last)
    assert caught.value.code == code
    check(join(number=last + 1), KEY, last)


def test_a_link_that_is_not_there():
    with pytest.raises(Refused) as caught:
        check(join(), None, 0)
    assert caught.value.code == m.UNKNOWN


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 no", m.PREAMBLE, m.PREAMBLE + bytes(90)])
def test_any_other_answer(answer):
    async def talk(left, right):
        await right.write(answer)
        right.close()
        await ask(left, KEY, 1)

    with channels() as (left, right):
        with pytest.raises((PeerLost, VersionMismatch, Exception)) as caught:
            run(talk(left, right))
        assert not isinstance(caught.value, asyncio.TimeoutError)


def test_the_key_does_not_show_itself():
    assert repr(KEY) == "<LinkKey>"
    assert len(KEY.name) == m.LINK_BYTES
    assert KEY.name != OTHER.name


# -------------------------------------------------------------------------------- at a real door
def said_to(one, data):
    """All that a plane's TCP door answers."""
    address, answer = parse(one.plane.addresses[1]), b""
    with socket.create_connection((address.host, address.port), timeout=60) as sock:
        sock.sendall(data)
        with contextlib.suppress(ConnectionError):
            while part := sock.recv(65536):
                answer += part
    return answer


@pytest.fixture
def linked(plane):
    """Two planes with a TCP link, and both records of it."""
    a, b = plane(providers=("tcp",)), plane(listen="127.0.0.1:0", providers=("tcp",))
    ours = wait_up(a.plane.peer(b.incarnation, [b.plane.addresses[1]]))
    theirs = wait_up(next(r for r in b.plane.peers if r.incarnation == a.incarnation))
    return a, b, ours, theirs


def test_both_sides_of_a_link_have_its_key(linked):
    _, _, ours, theirs = linked
    assert ours.contact.key.name == theirs.contact.key.name


def test_strangers_join_nothing_and_disturb_nobody(linked, eventually):
    a, b, ours, theirs = linked
    key = theirs.contact.key
    before = descriptors()
    forged = m.Join(key.name, 1, OTHER.proof(b"opener", 1))
    for message in (join(OTHER), forged):
        answer = said_to(b, m.PREAMBLE + m.frame(message))
        assert answer.startswith(m.PREAMBLE)
        assert isinstance(m.decode_handshake(answer[12:], m.Joined), m.Refuse)
    assert theirs.contact.last_stream == 0
    assert a.plane.request(ours, "echo", b"still", 60).result(60) == b"still"
    eventually(lambda: descriptors() <= before)


def test_a_join_that_was_seen_is_worth_nothing(linked, eventually):
    a, b, ours, theirs = linked
    heard = m.PREAMBLE + m.frame(join(theirs.contact.key, 1))
    address = parse(b.plane.addresses[1])
    with socket.create_connection((address.host, address.port), timeout=60) as first:
        first.sendall(heard)
        assert first.recv(65536).startswith(m.PREAMBLE)
        eventually(lambda: theirs.contact.last_stream == 1)
        answer = said_to(b, heard)
        assert m.decode_handshake(answer[12:], m.Joined).code == m.SECRET
    assert a.plane.request(ours, "echo", b"still", 60).result(60) == b"still"


def test_a_link_that_is_gone_is_joined_no_more(linked, eventually):
    a, b, ours, theirs = linked
    a.plane.disconnect(ours)
    eventually(lambda: not b.plane.peers)
    answer = said_to(b, m.PREAMBLE + m.frame(join(theirs.contact.key, 1)))
    assert m.decode_handshake(answer[12:], m.Joined).code == m.UNKNOWN
