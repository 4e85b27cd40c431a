"""A link between two ends in this process: cut anywhere, interrupted anywhere, any size."""

from __future__ import annotations

import contextlib
import queue
import socket
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transport import PeerLost, PeerRefused
from transport.mesh import messages as m
from transport.mesh.link import Link, _Incoming
from transport.mesh.wheel import shared


class End:
    """What one end heard."""

    def __init__(self, sock):
        self.heard = queue.SimpleQueue()
        self.lost = queue.SimpleQueue()
        self.link = Link(sock, shared(), self.take, lambda link, error: self.lost.put(error))
        self.link.begin()

    def take(self, link, message, body):
        self.heard.put((message, bytes(body)))


@contextlib.contextmanager
def two_ends():
    a, b = map(End, socket.socketpair())
    try:
        yield a, b
    finally:
        for end in (a, b):
            end.link.close()
        for end in (a, b):
            end.lost.get(timeout=30)


@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, 3 << 20, 20 << 20])
def test_bodies_of_any_size_arrive_in_order(size):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with two_ends() as (a, b):
        for number in range(3):
            a.link.send(m.Answer(number, True), body)
            a.link.send(m.Ping(number))
        for number in range(3):
            assert b.heard.get(timeout=30) == (m.Answer(number, True), body)
            assert b.heard.get(timeout=30) == (m.Ping(number), b"")


def test_the_end_is_told_once_and_sending_fails():
    with two_ends() as (a, b):
        b.link.close()
        assert isinstance(a.lost.get(timeout=30), PeerLost)
        with pytest.raises(PeerLost):
            a.link.send(m.Ping(1))
        a.lost.put(None)  # for the end of the test
        b.link.close()


def test_what_was_sent_before_the_end_arrives():
    with two_ends() as (a, b):
        for number in range(100):
            a.link.send(m.Ping(number))
        a.link.close()
        assert [b.heard.get(timeout=30)[0].number for _ in range(100)] == list(range(100))


def test_a_peer_that_breaks_the_protocol_is_refused():
    ours, theirs = socket.socketpair()
    end = End(ours)
    with theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert isinstance(end.lost.get(timeout=30), PeerRefused)


def test_a_body_takes_memory_as_it_comes_not_as_it_is_announced():
    a, b = socket.socketpair()
    with a, b:
        b.setblocking(False)
        incoming = _Incoming(b, lambda message, body: None)
        a.sendall(m.frame(m.Answer(1, True), m.MAX_BODY) + bytes(70_000))
        incoming.read()
        incoming.read()
        large = incoming._buffer.large
        assert large is not None
        assert 0 < len(large.body) < 8 << 20


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.integers(1, 30))
def test_however_the_stream_is_cut(bodies, step):
    stream = b"".join(m.frame(m.Answer(n, True), len(body)) + body for n, body in enumerate(bodies))
    heard = []
    a, b = socket.socketpair()
    with a, b:
        b.setblocking(False)
        incoming = _Incoming(b, lambda message, body: heard.append((message.number, bytes(body))))
        for at in range(0, len(stream), step):
            a.sendall(stream[at : at + step])
            incoming.read()
    assert heard == list(enumerate(bodies))


def test_an_interrupted_handler_sees_its_message_again():
    a, b = socket.socketpair()
    heard = []

    def handle(message, body):
        heard.append(message.number)
        if len(heard) == 2:
            raise KeyboardInterrupt

    with a, b:
        b.setblocking(False)
        incoming = _Incoming(b, handle)
        a.sendall(b"".join(m.frame(m.Ping(number)) for number in range(4)))
        with pytest.raises(KeyboardInterrupt):
            incoming.read()
        incoming.read()
    assert heard == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("size", [10, 20 << 20])
def test_ctrl_c_right_after_a_send_neither_loses_the_rest_nor_sends_it_twice(size):
    def strike(frame, event, called):
        if event != "c_return" or frame.f_code is not Link._send_now.__code__:
            return
        if called.__name__ in ("sendmsg", "extend"):
            sys.setprofile(None)
            raise KeyboardInterrupt

    body = bytes(range(250)) * (size // 250) + bytes(size % 250)
    with two_ends() as (a, b):
        sys.setprofile(strike)
        try:
            with pytest.raises(KeyboardInterrupt):
                a.link.send(m.Answer(1, True), body)
        finally:
            sys.setprofile(None)
        a.link.send(m.Ping(2))
        assert b.heard.get(timeout=30) == (m.Answer(1, True), body)
        assert b.heard.get(timeout=30) == (m.Ping(2), b"")
