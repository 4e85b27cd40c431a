"""Whoever connects without a proof: dropped in time, bounded in number, harmless in content."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest
from control_planes import descriptors, open_plane, opened_peers
from hypothesis import given
from hypothesis import strategies as st

from transport.control import messages as m
from transport.control.address import parse
from transport.control.guests import MAX_STRANGERS

HELLO = m.PREAMBLE + m.frame(
    m.Hello(m.Identity(b"s" * 16, "stranger", 1, 64, ()), bytes(32), None, True)
)
LINK = m.encode(m.Commit(True, (m.ProviderOffer("shm", b"evil", 0),)))
COMMIT = m.frame(m.Proven(bytes(32), LINK))


def call(one, index=0):
    """A raw socket to one of a plane's doors."""
    address = parse(one.plane.addresses[index])
    if index:
        return socket.create_connection((address.host, address.port), timeout=60)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(60)
    sock.connect(address.sockaddr)
    return sock


def everything(sock):
    """All that is said until the other side hangs up."""
    said = b""
    with contextlib.suppress(ConnectionError), sock:
        while part := sock.recv(65536):
            said += part
    return said


@pytest.mark.parametrize("index", [0, 1])
def test_a_foreign_protocol_is_dropped_silently_and_logged_once(plane, caplog, index):
    """F9, H11"""
    one = plane(listen="127.0.0.1:0")
    for _ in range(3):
        sock = call(one, index)
        sock.sendall(b"GET / HTTP/1.1\r\nHost: engine\r\n\r\n")
        assert everything(sock) == b""
    assert len([r for r in caplog.records if "does not speak" in r.getMessage()]) == 1


def test_a_stranger_learns_who_is_there_and_no_more(plane):
    one = plane()
    sock = call(one)
    sock.sendall(HELLO + COMMIT)
    said = everything(sock)
    assert said.startswith(m.PREAMBLE)
    assert b"different secrets" in said
    assert one.plane.peers == ()
    assert opened_peers(one) == 0


def test_one_that_dawdles_is_dropped_at_the_deadline(plane):
    one = plane(connect_timeout=0.2)
    began, sent = time.monotonic(), 0
    sock = call(one)
    with contextlib.suppress(ConnectionError), sock:
        for byte in HELLO:  # takes many times as long as it has
            sock.sendall(bytes((byte,)))
            sent += 1
            time.sleep(0.05)
    assert time.monotonic() - began > 0.1
    assert sent < len(HELLO)


def test_idle_ones_do_not_keep_a_good_one_out(plane, eventually):
    one, good = plane(listen="127.0.0.1:0", connect_timeout=300.0), plane(connect_timeout=60.0)
    idle = [call(one, index % 2) for index in range(100)]
    assert good.plane.connect(one.plane.addresses[0]).link == "unix"

    def still():
        return sum(not _hung_up(sock) for sock in idle)

    eventually(lambda: still() <= MAX_STRANGERS)
    assert still() > 0
    for sock in idle:
        sock.close()


def _hung_up(sock):
    sock.settimeout(0.01)
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_the_crowded_source_pays(plane):
    """Many over TCP do not push out one who is slow over unix."""
    one = plane(listen="127.0.0.1:0", connect_timeout=300.0)
    slow = call(one)
    slow.sendall(HELLO)
    slow.recv(8)
    crowd = [call(one, 1) for _ in range(80)]
    assert not _hung_up(slow)
    for sock in (slow, *crowd):
        sock.close()


def test_connected_peers_are_no_strangers(plane):
    one = plane()
    peers = [plane() for _ in range(3)]
    records = [peer.plane.connect(one.plane.addresses[0]) for peer in peers]
    crowd = [call(one) for _ in range(80)]
    for peer, record in zip(peers, records, strict=True):
        assert peer.plane.request(record, "echo", b"x", 60).result(60) == b"x"
    for sock in crowd:
        sock.close()


def test_running_out_of_descriptors_is_survived(plane, monkeypatch, caplog):
    from transport.control import guests

    monkeypatch.setattr(guests, "_PAUSE", 0.02)
    one, failures = plane(), [OSError(24, "Too many open files")] * 2
    real = socket.socket.accept

    def accept(self):
        if failures:
            raise failures.pop()
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    assert plane().plane.connect(one.plane.addresses[0]).link == "unix"
    assert "cannot accept connections for now" in caplog.text


@given(st.data())
def test_hostile_bytes_change_nothing(hostile, data):
    """Bytes of any kind: pure noise, and real conversations that are cut, joined or changed."""
    one, good = hostile
    parts = st.sampled_from([HELLO, m.PREAMBLE, HELLO[8:], COMMIT, m.LENGTH.pack(1 << 31)])
    said = b"".join(data.draw(st.lists(st.one_of(parts, st.binary(max_size=60)), max_size=4)))
    changed = bytearray(said)
    for _ in range(data.draw(st.integers(0, 3)) if said else 0):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    sock = call(one, data.draw(st.integers(0, 1)))
    with contextlib.suppress(OSError):  # it may have hung up already
        sock.sendall(changed)
        sock.shutdown(socket.SHUT_WR)
    answer = everything(sock)
    assert answer[:8] in (b"", m.PREAMBLE)
    assert len(answer) < 2048
    assert one.plane.peers == good


@pytest.fixture(scope="module")
def hostile():
    """A plane with one connected peer, which must not notice anything."""
    with open_plane(listen="127.0.0.1:0", connect_timeout=30.0) as one, open_plane() as other:
        record = other.plane.connect(one.plane.addresses[0])
        assert other.plane.request(record, "echo", b"before", 60).result(60) == b"before"
        before = descriptors()
        yield one, one.plane.peers
        assert other.plane.request(record, "echo", b"after", 60).result(60) == b"after"
        late = time.monotonic() + 60
        while descriptors() > before and time.monotonic() < late:
            time.sleep(0.01)
        assert descriptors() == before
