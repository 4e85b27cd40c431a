"""The shm provider's half of the handshake: real native connections, and offers that lie."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
from control_planes import descriptors, open_engine, open_plane
from relay import wait_up

from transport.config import Settings
from transport.errors import InvalidUse, PeerRefused, TransportError
from transport.ffi import lib
from transport.providers import registry, shm
from transport.providers.shm import provider
from transport.types import LinkFacts, Offer

UNIX = LinkFacts(
    is_unix=True, pid=os.getpid(), uid=os.geteuid(), initiator=True, incarnation=bytes(16)
)
TCP = LinkFacts(is_unix=False, pid=0, uid=-1, initiator=True, incarnation=bytes(16))

FACTS = [4096, b"t" * 16, 4096]


@pytest.fixture
def endpoint():
    settings = Settings(max_regions=1024)
    native = open_engine(os.urandom(16), settings, [shm.PROVIDER])
    yield shm.PROVIDER.open(native, settings)
    lib.tn_engine_close(native.pointer)


@pytest.fixture
def connection(endpoint):
    connection = endpoint.connection(UNIX)
    yield connection
    connection.close()


def pair():
    read, write = os.pipe()
    return read, write


def test_an_offer_has_a_token_and_two_descriptors(connection):
    offer = connection.offer()
    address, token, size = msgspec.msgpack.decode(offer.data)
    assert address > 0
    assert len(token) == 16
    assert size % 4096 == 0
    assert len(offer.fds) == 2
    assert all(os.fstat(fd).st_size for fd in offer.fds)


def test_it_is_for_unix_links_only(endpoint):
    assert endpoint.connection(TCP) is None
    assert "process_vm" in endpoint.describe()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1, b"t" * 15, 4096]),
        msgspec.msgpack.encode([1, b"t" * 17, 4096]),
        msgspec.msgpack.encode([-1, b"t" * 16, 4096]),
        msgspec.msgpack.encode([1, b"t" * 16, -1]),
        msgspec.msgpack.encode([1, b"t" * 16, 1 << 63]),
        msgspec.msgpack.encode({"token": b"t" * 16}),
        msgspec.msgpack.encode(FACTS[:2]),
    ],
)
def test_an_offer_that_cannot_be_read_is_refused_and_its_descriptors_closed(connection, data):
    before = descriptors()
    with pytest.raises(PeerRefused, match="shm offer"):
        connection.accept(Offer(data, pair()), UNIX)
    assert descriptors() == before


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_number_of_descriptors_is_checked(connection, count):
    before = descriptors()
    fds = tuple(os.open("/dev/null", os.O_RDONLY) for _ in range(count))
    with pytest.raises(PeerRefused, match="descriptors"):
        connection.accept(Offer(msgspec.msgpack.encode(FACTS), fds), UNIX)
    assert descriptors() == before


def test_descriptors_that_are_no_sealed_memory_are_refused_and_closed(connection):
    before = descriptors()
    with pytest.raises(TransportError):
        connection.accept(Offer(msgspec.msgpack.encode(FACTS), pair()), UNIX)
    assert descriptors() == before


def test_closing_twice_is_closing_once(endpoint):
    before = descriptors()
    connection = endpoint.connection(UNIX)
    assert descriptors() > before
    for _ in range(2):
        connection.close()
        assert descriptors() == before


def test_a_link_that_is_not_made_leaves_nothing_behind():
    with open_plane() as one, open_plane(secret="another secret than the other") as other:
        before = descriptors()
        for _ in range(5):
            with pytest.raises(PeerRefused):
                one.plane.connect(other.plane.addresses[0])
            record = one.plane.peer(other.incarnation, other.plane.addresses)
            with pytest.raises(PeerRefused):
                wait_up(record)
        del record
        end = time.monotonic() + 60  # the other side may still be hanging up
        while descriptors() != before and time.monotonic() < end:
            time.sleep(0.005)
        assert descriptors() == before


def test_a_ptracer_that_is_not_there_is_the_callers_mistake(monkeypatch):
    provider._allow_ptracer("")
    provider._allow_ptracer("any")
    monkeypatch.setattr(provider, "_YAMA", Path("/nonexistent"))
    provider._allow_ptracer("4194304")
    if Path("/proc/sys/kernel/yama").exists():
        monkeypatch.undo()
        with pytest.raises(InvalidUse, match="there is no process"):
            provider._allow_ptracer("4194304")


def test_probing_says_why(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    assert registry.find("shm").probe(Settings())
    monkeypatch.setattr(os, "memfd_create", refuse)
    viability = shm.PROVIDER.probe(Settings())
    assert not viability
    assert "not permitted" in viability.reason
    assert viability.remedy
