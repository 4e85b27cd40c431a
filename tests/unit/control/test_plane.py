"""Whole control planes over native engines: connecting, refusing, losing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import weakref

import pytest
from control_planes import (
    Memory,
    TalkingEndpoint,
    Write,
    native_state,
    opened_peers,
    take_notification,
)
from possessions import uncollected
from relay import tcp_address, wait_up

from transport.control import messages
from transport.control.address import parse
from transport.control.handshake import Refused
from transport.control.records import Inbound, State
from transport.errors import (
    DeadlineExceeded,
    InvalidUse,
    PeerLost,
    PeerRefused,
    StaleRegion,
    Status,
    TransferError,
    TransportError,
    Unavailable,
)
from transport.providers import registry

LOW, HIGH = b"\0" + os.urandom(15), b"\xff" + os.urandom(15)


# ------------------------------------------------------------------------------------- connecting
def test_a_peer_is_there_at_once_and_comes_up(plane, eventually):
    a, b = plane(), plane()
    record = a.plane.peer(b.incarnation, b.plane.addresses)
    assert a.plane.peer(b.incarnation, b.plane.addresses) is record
    wait_up(record)
    assert (record.link, record.pid, record.name) == ("unix", os.getpid(), b.plane.identity.name)
    assert record.providers == ("shm",)
    assert record.address == b.plane.addresses[0]
    (other,) = eventually(lambda: [r for r in b.plane.peers if r.state is State.UP])
    assert other.incarnation == a.incarnation
    assert (other.link, other.providers, other.address) == ("unix", ("shm",), "")
    assert b.plane.record(other.cookie) is other
    assert b.plane.peer(a.incarnation, ()) is other


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_over_tcp(plane, eventually, listen):
    a, b = plane(providers=("tcp",)), plane(listen=listen)
    record = wait_up(a.plane.peer(b.incarnation, b.plane.addresses))
    assert (record.link, record.providers) == ("tcp", ("tcp",))
    assert record.address == b.plane.addresses[1]
    with Memory(b) as memory:
        write = Write(record, memory)
        assert (write.status(60), write.provider()) == (Status.OK, registry.find("tcp").identifier)
        write.release()


def test_over_a_unix_path(plane, tmp_path):
    path = tmp_path / "engine.sock"
    a, b = plane(), plane(listen=f"unix:{path}")
    assert f"unix:{path}" in b.plane.addresses
    assert path.stat().st_mode & 0o777 == 0o600
    record = wait_up(a.plane.peer(b.incarnation, [f"unix:{path}"]))
    assert (record.link, record.address) == ("unix", f"unix:{path}")
    b.plane.close()
    assert not path.exists()


def test_a_socket_file_left_by_a_dead_engine_is_replaced_and_a_living_one_is_not(plane, tmp_path):
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    a = plane(listen=f"unix:{path}")
    with pytest.raises(Unavailable, match="cannot listen on unix:"):
        plane(listen=f"unix:{path}")
    a.plane.close()
    path.write_text("somebody's file")
    with pytest.raises(Unavailable):
        plane(listen=f"unix:{path}")
    assert path.read_text() == "somebody's file"


def test_unix_is_preferred_with_shm_and_tcp_without(plane):
    b = plane(listen="127.0.0.1:0")
    with_shm = plane()
    assert with_shm.plane.connect(b.plane.addresses[1]).link == "unix"
    without = plane(providers=("tcp",))
    assert without.plane.connect(b.plane.addresses[0]).link == "tcp"


def test_connect_learns_who_is_there(plane):
    a, b = plane(), plane(listen="127.0.0.1:0")
    record = a.plane.connect(b.plane.addresses[1])
    assert record.incarnation == b.incarnation
    assert a.plane.connect(b.plane.addresses[0]) is record
    assert a.plane.peers == (record,)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
def test_connecting_to_oneself(plane, listen):
    a = plane(listen=listen)
    for address in a.plane.addresses:
        record = a.plane.connect(address)
        assert record is a.plane.self_record()
    assert (record.link, record.state, record.name) == ("self", State.UP, a.plane.identity.name)
    assert a.plane.peer(a.incarnation, ()) is record


def test_two_ways_to_say_the_same(plane):
    b = plane(listen=["127.0.0.1:0", "[::1]:0"])
    assert [address.rpartition(":")[0] for address in b.plane.addresses] == [
        "unix",
        "127.0.0.1",
        "[::1]",
    ]
    assert plane(listen=()).plane.addresses == ()


def test_listening_on_all_addresses(plane):
    for listen in ("0.0.0.0:0", "[::]:0"):
        with pytest.raises(InvalidUse, match="advertise="):
            plane(listen=listen, tcp_interfaces=("no-such-interface",))
    everywhere = plane(listen=["0.0.0.0:0", "[::]:0"], tcp_interfaces=("lo",)).plane
    assert [address.rpartition(":")[0] for address in everywhere.addresses[1:]] == [
        "127.0.0.1",
        "[::1]",
    ]
    for address in everywhere.addresses[1:]:
        assert plane(providers=("tcp",)).plane.connect(address).link == "tcp"
    with pytest.raises(InvalidUse):
        plane(listen="0.0.0.0:0", advertise="two words")
    a = plane(listen="0.0.0.0:0", advertise="127.0.0.1")
    assert a.plane.addresses[1].startswith("127.0.0.1:")
    assert plane(providers=("tcp",)).plane.connect(a.plane.addresses[1]).link == "tcp"


def test_a_port_that_is_taken_is_unavailable_and_binds_nothing(plane):
    a = plane(listen="127.0.0.1:0")
    incarnation = os.urandom(16)
    with pytest.raises(Unavailable, match="cannot listen on"):
        plane(incarnation=incarnation, listen=["[::1]:0", a.plane.addresses[1]])
    plane(incarnation=incarnation)  # its abstract name is free again


def test_providers_end_up_the_same_on_both_sides(plane, eventually):
    fine, failing = TalkingEndpoint(b"1"), TalkingEndpoint(b"2", fails="no rail")
    a = plane(providers=("shm",), foreign=fine)
    b = plane(providers=("shm",), foreign=failing)
    record = wait_up(a.plane.peer(b.incarnation, b.plane.addresses))
    assert record.providers == ("shm",)
    assert record.reasons == {"foreign": "the peer says: no rail"}
    (other,) = eventually(lambda: [r for r in b.plane.peers if r.state is State.UP])
    assert (other.providers, other.reasons) == (("shm",), {"foreign": "no rail"})
    assert [connection.state for connection in fine.connections] == ["closed"]


def test_names_are_cut_and_made_printable(plane, eventually):
    a = plane(name="evil\nname\x1b" + "x" * 200)
    b = plane()
    assert b.plane.connect(a.plane.addresses[0]).name == "evil?name?" + "x" * 118


def test_each_side_is_told_the_others_notify_depth(plane, eventually):
    """So many notifications may be unread there, and the next one waits here."""
    a, b = plane(notify_depth=3), plane(notify_depth=5)
    record = wait_up(a.plane.peer(b.incarnation, b.plane.addresses))
    (other,) = eventually(lambda: [r for r in b.plane.peers if r.state is State.UP])
    for mine, theirs, depth in ((record, b, 5), (other, a, 3)):
        with Memory(theirs) as memory:
            writes = [Write(mine, memory) for _ in range(depth + 1)]
            assert [write.status(60) for write in writes[:-1]] == [Status.OK] * depth
            assert writes[-1].status(0.05) is Status.PENDING
            for _ in range(depth):
                assert take_notification(theirs)
            assert writes[-1].status(60) is Status.OK
            for write in writes:
                write.release()


# ---------------------------------------------------------------------------------------- failing
def test_nobody_there_is_a_lost_peer(plane):
    a = plane()
    for address in ("unix:@nobody-here", "unix:/nobody/here", "127.0.0.1:9"):
        record = a.plane.peer(os.urandom(16), [address])
        with pytest.raises(PeerLost, match=f"cannot connect to {address}"):
            wait_up(record)
        assert native_state(record)[0] is Status.PEER_LOST
        assert record.state is State.LOST
        with pytest.raises(PeerLost):
            a.plane.connect(address)
    assert a.plane.peers == ()


@pytest.mark.parametrize("silent", [False, True])
def test_who_cannot_be_had_is_not_kept_by_what_that_raised(plane, eventually, silent):
    """An error holds the frames that it came through, and the tasks that failed hold it."""
    with contextlib.ExitStack() as stack:
        addresses = ["unix:@nobody-here", "127.0.0.1:9"]
        if silent:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            addresses = [tcp_address(server)]
        a = plane(connect_timeout=0.2)
        stack.enter_context(uncollected())
        record = a.plane.peer(os.urandom(16), addresses)
        with pytest.raises(PeerLost):
            wait_up(record)
        with pytest.raises((PeerLost, DeadlineExceeded)):
            a.plane.connect(addresses[0], 0.1)
        gone = weakref.ref(record)
        a.lost.clear()
        del record
        eventually(lambda: gone() is None)


def test_a_peer_without_addresses_can_only_connect_itself(plane):
    a, b = plane(), plane(listen=())
    with pytest.raises(PeerLost, match="no address"):
        wait_up(a.plane.peer(b.incarnation, ()))
    wait_up(b.plane.peer(a.incarnation, a.plane.addresses))
    wait_up(a.plane.peer(b.incarnation, ()))


def test_another_incarnation_is_stale(plane):
    a, b = plane(), plane(listen="127.0.0.1:0")
    record = a.plane.peer(os.urandom(16), ["unix:@gone", b.plane.addresses[1]])
    with pytest.raises(StaleRegion, match=f"the engine at {b.plane.addresses[1]} is another"):
        wait_up(record)
    status, text = native_state(record)
    assert status is Status.STALE
    assert "the owner restarted" in text


def test_a_wrong_secret_is_refused_and_logged_without_it(plane, eventually, caplog):
    caplog.set_level(logging.DEBUG, "transport.control.guests")
    a, b = plane(secret="another secret!!"), plane()
    with pytest.raises(PeerRefused, match="different secrets"):
        a.plane.connect(b.plane.addresses[0])
    record = a.plane.peer(b.incarnation, b.plane.addresses)
    with pytest.raises(PeerRefused, match="different secrets"):
        wait_up(record)
    assert native_state(record)[0] is Status.PEER_REFUSED
    assert b.plane.peers == ()
    told = "different secrets"
    eventually(lambda: caplog.text.count(told) == 2)
    levels = [record.levelno for record in caplog.records if told in record.getMessage()]
    assert levels == [logging.WARNING, logging.DEBUG], "once per source"
    assert "another secret!!" not in caplog.text


def test_without_a_secret_only_unix_is_served_and_used(plane):
    with pytest.raises(InvalidUse, match="needs the job's secret"):
        plane(secret=None, listen="127.0.0.1:0")
    a, b = plane(secret=None), plane(secret=None)
    assert a.plane.connect(b.plane.addresses[0]).link == "unix"
    c = plane(listen="127.0.0.1:0")
    with pytest.raises(PeerRefused, match="secret"):
        a.plane.connect(c.plane.addresses[1])


def test_a_silent_listener_ends_at_the_deadline(plane):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = tcp_address(silent)
        a = plane(connect_timeout=0.1)
        with pytest.raises(PeerLost, match="no answer within"):
            wait_up(a.plane.peer(os.urandom(16), [address]))
        with pytest.raises(DeadlineExceeded, match="took more than"):
            a.plane.connect(address, 0.05)


def test_addresses_that_are_silent_or_swallow_packets_cost_a_moment_only(plane):
    """Not their share of the time limit, which would end this test."""
    b = plane(listen="127.0.0.1:0")
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.create_connection(full.getsockname()),
        socket.socket() as waiting,
    ):
        waiting.setblocking(False)
        waiting.connect_ex(full.getsockname())  # from now on it answers nobody
        dead = [tcp_address(full), tcp_address(silent)]
        a = plane(connect_timeout=600.0, providers=("tcp",))
        record = wait_up(a.plane.peer(b.incarnation, [*dead, b.plane.addresses[1]]))
        assert record.address == b.plane.addresses[1]


def test_bad_addresses_are_the_callers_mistake(plane):
    a = plane()
    for address in ("nonsense", "unix:@" + "x" * 200):
        with pytest.raises(InvalidUse):
            a.plane.connect(address)
        with pytest.raises(InvalidUse):
            a.plane.peer(os.urandom(16), [address])
    assert opened_peers(a) == 0


def test_when_the_link_breaks_the_record_is_lost_and_a_new_one_can_be_had(relayed, eventually):
    a, b, record, relay = relayed
    relay.cut_near()
    eventually(lambda: record.state is State.LOST)
    assert isinstance(record.error, PeerLost)
    assert record.error.peer == record.name
    assert a.lost == [record]
    again = wait_up(a.plane.peer(b.incarnation, b.plane.addresses))
    assert again is not record
    assert again.cookie != record.cookie


def test_a_peer_that_lost_its_side_replaces_the_link(relayed, eventually):
    a, b, record, relay = relayed
    (other,) = eventually(lambda: [r for r in b.plane.peers if r.state is State.UP])
    relay.cut_near()
    eventually(lambda: record.state is State.LOST)
    assert other.state is State.UP
    again = wait_up(a.plane.peer(b.incarnation, b.plane.addresses))
    assert other.state is State.LOST
    assert "had lost the connection" in str(other.error)
    (new,) = eventually(lambda: [r for r in b.plane.peers if r.state is State.UP])
    assert new is not other
    assert again.state is State.UP


def test_disconnecting_tells_the_other_side(plane, eventually):
    a, b = plane(), plane()
    record = wait_up(a.plane.peer(b.incarnation, b.plane.addresses))
    a.plane.disconnect(record)
    eventually(lambda: record.state is State.LOST and not b.plane.peers)
    assert native_state(record)[0] is Status.CLOSED
    assert isinstance(record.error, TransferError)


# ----------------------------------------------------------------------------------- both at once
def connect_at_once(a, b, threads=8):
    """Each of so many threads on each side connects; the records and errors of all."""
    barrier, records, errors = threading.Barrier(2 * threads), [], []

    def connect(mine, theirs):
        barrier.wait()
        try:
            records.append(wait_up(mine.plane.peer(theirs.incarnation, theirs.plane.addresses)))
        except TransportError as error:
            errors.append(error)

    sides = [(a, b), (b, a)] * threads
    running = [threading.Thread(target=connect, args=side) for side in sides]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return records, errors


@pytest.mark.parametrize("first", [LOW, HIGH], ids=["low", "high"])
def test_both_sides_at_once_from_many_threads(plane, first):
    second = HIGH if first == LOW else LOW
    for _ in range(5):
        a, b = plane(incarnation=first), plane(incarnation=second)
        records, errors = connect_at_once(a, b)
        assert not errors
        assert len({id(record) for record in records}) == 2
        for one in (a, b):
            (record,) = one.plane.peers
            assert (record.state, native_state(record)[0]) == (State.UP, Status.OK)
            assert one.plane.request(record, "echo", b"still", 60).result(60) == b"still"
            assert opened_peers(one) == 1
        a.plane.close()
        b.plane.close()


def test_an_attempt_that_has_lost_gives_up_before_it_proves_itself(plane):
    """Also in the very step of the loop in which the peer's connection was accepted."""
    a, b = plane(), plane()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        record = a.plane.peer(b.incarnation, [tcp_address(silent)])

        async def attempt():
            record.contact.inbound = Inbound(1, None)
            await a.plane._connector._link(record, parse(b.plane.addresses[0]), lambda: None)

        with pytest.raises(Refused) as caught:
            asyncio.run_coroutine_threadsafe(attempt(), a.plane._loop).result(60)
        assert caught.value.code == messages.DUPLICATE
        assert (record.state, b.plane.peers) == (State.CONNECTING, ())


def test_a_waiting_record_is_brought_up_by_the_peers_own_connection(plane):
    """A cannot reach B, but B reaches A: the peer object that A's transfers wait on comes up."""
    a, b = plane(connect_timeout=60.0), plane(listen=())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        waiting = a.plane.peer(b.incarnation, [tcp_address(silent)])
        wait_up(b.plane.peer(a.incarnation, a.plane.addresses))
        wait_up(waiting)
    assert waiting.address == ""
    assert opened_peers(a) == 1
