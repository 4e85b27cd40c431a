"""Whole control planes over native engines: connecting, losing, asking, closing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from control_planes import (
    SECRET,
    Memory,
    TalkingEndpoint,
    Write,
    descriptors,
    native_state,
    open_plane,
    opened_peers,
    say,
    take_notification,
)

from transport.control import messages
from transport.control.address import parse
from transport.control.handshake import Refused
from transport.control.plane import Callbacks
from transport.control.records import Inbound, State
from transport.errors import (
    DeadlineExceeded,
    InvalidUse,
    PeerError,
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


def tcp_address(server):
    return f"127.0.0.1:{server.getsockname()[1]}"


def wait_up(record, seconds=5):
    assert record.ready.result(seconds) is record
    return record


class Relay:
    """The network between the one who connects and an engine: it can stand still, and break."""

    def __init__(self, target):
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._ends = []
        self.address = tcp_address(self._server)
        self.flows = threading.Event()
        self.flows.set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        with contextlib.suppress(OSError):
            self._ends.append(self._server.accept()[0])
            self._ends.append(socket.create_connection(self._target))
            near, far = self._ends
            back = threading.Thread(target=self._pass_on, args=(far, near))
            back.start()
            self._pass_on(near, far)
            back.join()

    def _pass_on(self, source, sink):
        with contextlib.suppress(OSError):
            while self.flows.wait() and (part := source.recv(1 << 16)):
                sink.sendall(part)

    def cut_near(self):
        """The side that connected finds the link broken; the other one hears nothing."""
        self._ends[0].shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.flows.set()
        for sock in (self._server, *self._ends):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for sock in (self._server, *self._ends):
            sock.close()


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
        assert (write.status(5), write.provider()) == (Status.OK, registry.find("tcp").identifier)
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


def test_wildcards_need_advertise(plane):
    for listen in ("0.0.0.0:0", "[::]:0"):
        with pytest.raises(InvalidUse, match="advertise="):
            plane(listen=listen)
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
            assert [write.status(5) for write in writes[:-1]] == [Status.OK] * depth
            assert writes[-1].status(0.05) is Status.PENDING
            for _ in range(depth):
                assert take_notification(theirs)
            assert writes[-1].status(5) is Status.OK
            for write in writes:
                write.release()


# ---------------------------------------------------------------------------------------- failing
def test_nobody_there_is_a_lost_peer(plane):
    a = plane()
    for address in ("unix:@nobody-here", "unix:/nobody/here", "127.0.0.1:9"):
        record = a.plane.peer(os.urandom(16), [address])
        with pytest.raises(PeerLost, match=f"cannot connect to {address}"):
            record.ready.result(5)
        assert native_state(record)[0] is Status.PEER_LOST
        assert record.state is State.LOST
        with pytest.raises(PeerLost):
            a.plane.connect(address)
    assert a.plane.peers == ()


def test_a_peer_without_addresses_can_only_connect_itself(plane):
    a, b = plane(), plane(listen=())
    with pytest.raises(PeerLost, match="no address"):
        a.plane.peer(b.incarnation, ()).ready.result(5)
    wait_up(b.plane.peer(a.incarnation, a.plane.addresses))
    wait_up(a.plane.peer(b.incarnation, ()))


def test_another_incarnation_is_stale(plane):
    a, b = plane(), plane(listen="127.0.0.1:0")
    record = a.plane.peer(os.urandom(16), ["unix:@gone", b.plane.addresses[1]])
    with pytest.raises(StaleRegion, match=f"the engine at {b.plane.addresses[1]} is another"):
        record.ready.result(5)
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
        record.ready.result(5)
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
            a.plane.peer(os.urandom(16), [address]).ready.result(5)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="took more than"):
            a.plane.connect(address, 0.05)
        assert time.monotonic() - began < 2


def test_a_silent_address_does_not_keep_a_good_one_from_being_tried(plane):
    b = plane(listen="127.0.0.1:0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = tcp_address(silent)
        a = plane(connect_timeout=0.4, providers=("tcp",))
        wait_up(a.plane.peer(b.incarnation, [address, b.plane.addresses[1]]))


def test_bad_addresses_are_the_callers_mistake(plane):
    a = plane()
    for address in ("nonsense", "unix:@" + "x" * 200):
        with pytest.raises(InvalidUse):
            a.plane.connect(address)
        with pytest.raises(InvalidUse):
            a.plane.peer(os.urandom(16), [address])
    assert opened_peers(a) == 0


@pytest.fixture
def relayed(plane):
    """Two planes, the one's record of the other, and the network between them."""
    a, b = plane(providers=("tcp",)), plane(listen="127.0.0.1:0")
    with Relay(b.plane.addresses[1]) as relay:
        yield a, b, wait_up(a.plane.peer(b.incarnation, [relay.address])), relay


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
            assert one.plane.request(record, "echo", b"still", 5).result(5) == b"still"
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
            await a.plane._connector._link(record, parse(b.plane.addresses[0]))

        with pytest.raises(Refused) as caught:
            asyncio.run_coroutine_threadsafe(attempt(), a.plane._loop).result(5)
        assert caught.value.code == messages.DUPLICATE
        assert (record.state, b.plane.peers) == (State.CONNECTING, ())


def test_a_waiting_record_is_brought_up_by_the_peers_own_connection(plane):
    """A cannot reach B, but B reaches A: the peer object that A's transfers wait on comes up."""
    a, b = plane(connect_timeout=5.0), plane(listen=())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        waiting = a.plane.peer(b.incarnation, [tcp_address(silent)])
        wait_up(b.plane.peer(a.incarnation, a.plane.addresses))
        wait_up(waiting)
    assert waiting.address == ""
    assert opened_peers(a) == 1


# ---------------------------------------------------------------------------------------- talking
@pytest.fixture
def pair(plane):
    a, b = plane(), plane()
    return a, b, wait_up(a.plane.peer(b.incarnation, b.plane.addresses))


def test_questions_are_answered_by_functions_and_coroutines(pair):
    a, b, record = pair

    async def later(record, body):
        await asyncio.sleep(0.01)
        return body * 2

    b.plane.handle("now", lambda record, body: record.incarnation + body)
    b.plane.handle("later", later)
    slow, fast = (a.plane.request(record, topic, b"x", 5) for topic in ("later", "now"))
    assert fast.result(5) == a.incarnation + b"x"
    assert slow.result(5) == b"xx"


def test_a_question_may_be_asked_before_the_peer_is_up(plane):
    a, b = plane(), plane()
    record = a.plane.peer(b.incarnation, b.plane.addresses)
    replies = [a.plane.request(record, "echo", bytes([i]), 5) for i in range(50)]
    assert [reply.result(5) for reply in replies] == [bytes([i]) for i in range(50)]


def test_errors_of_a_handler_reach_the_asker(pair, caplog):
    a, b, record = pair

    def refuse(record, body):
        raise InvalidUse("there is no region named 'w'")

    b.plane.handle("refuse", refuse)
    b.plane.handle("break", lambda record, body: 1 / 0)
    with pytest.raises(PeerError, match="no region named 'w'"):
        a.plane.request(record, "refuse", b"", 5).result(5)
    with pytest.raises(PeerError, match="its log says why"):
        a.plane.request(record, "break", b"", 5).result(5)
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(PeerError, match="nobody here answers 'what'"):
        a.plane.request(record, "what", b"", 5).result(5)


def test_too_large_a_message_is_refused_on_either_side(pair):
    a, b, record = pair
    b.plane.handle("large", lambda record, body: bytes(1 << 18))
    with pytest.raises(InvalidUse, match="over 262144"):
        a.plane.request(record, "x", bytes(1 << 18), 5).result(5)
    with pytest.raises(PeerError, match="over 262144"):
        a.plane.request(record, "large", b"", 5).result(5)
    with pytest.raises(InvalidUse, match="a notice of 262144 bytes"):
        a.plane.send(record, "x", bytes(1 << 18))
    a.plane.send(record, "x" * 32, bytes((1 << 18) - 128))


def test_no_answer_in_time(pair):
    a, b, record = pair

    async def never(record, body):
        await asyncio.sleep(60)
        return b""

    b.plane.handle("never", never)
    with pytest.raises(DeadlineExceeded, match=r"'never' within 0\.05 s"):
        a.plane.request(record, "never", b"", 0.05).result(5)


def test_a_lost_peer_ends_its_questions_at_once(pair):
    a, b, record = pair

    async def never(record, body):
        await asyncio.sleep(60)
        return b""

    b.plane.handle("never", never)
    reply = a.plane.request(record, "never", b"", 60)
    b.plane.close()
    with pytest.raises(PeerLost):
        reply.result(5)
    with pytest.raises(PeerLost):
        a.plane.request(record, "never", b"", 60).result(5)


def test_notices_arrive_in_order_also_when_the_link_is_full(relayed, eventually):
    a, b, record, relay = relayed
    heard = []
    b.plane.handle("note", lambda record, body: heard.append(body))
    relay.flows.clear()
    filler = messages.encode(messages.Tell("filler", bytes(4096)))
    while say(record, filler):
        pass
    for number in range(20):
        a.plane.send(record, "note", bytes([number]))
    time.sleep(0.02)
    assert not heard
    relay.flows.set()
    eventually(lambda: len(heard) == 20)
    assert heard == [bytes([number]) for number in range(20)]


def test_a_peer_that_talks_nonsense_is_put_down(pair, eventually):
    _, b, record = pair
    (other,) = eventually(lambda: [r for r in b.plane.peers if r.state is State.UP])
    assert say(record, b"\xc1nonsense")
    eventually(lambda: other.state is State.LOST)
    assert native_state(other)[0] is Status.PROTOCOL
    assert isinstance(other.error, PeerLost)


def test_answers_to_questions_that_nobody_asked_change_nothing(pair):
    a, _, record = pair
    for number in (0, 1, 7):
        assert say(record, messages.encode(messages.Answer(number, True, b"forged")))
    assert a.plane.request(record, "echo", b"x", 5).result(5) == b"x"


def test_many_open_questions_are_bounded(pair):
    a, b, record = pair
    release = asyncio.Event()

    async def wait(record, body):
        await release.wait()
        return b"done"

    b.plane.handle("wait", wait)
    replies = [a.plane.request(record, "wait", b"", 5) for _ in range(300)]
    b.plane._call(lambda: b.plane._loop.call_later(0.2, release.set))
    results = []
    for reply in replies:
        try:
            results.append(reply.result(5))
        except PeerError as error:
            results.append(str(error))
    assert results.count(b"done") == 256
    assert results.count("too many questions at once") == 44


# ---------------------------------------------------------------------------------------- closing
def test_closing_tells_everybody(plane, eventually):
    a, b = plane(), plane()
    record = wait_up(a.plane.peer(b.incarnation, b.plane.addresses))
    connecting = a.plane.peer(os.urandom(16), ["unix:@nobody"])
    a.plane.close()
    a.plane.close()
    assert a.plane.closed
    assert record.state is connecting.state is State.LOST
    eventually(lambda: not b.plane.peers)
    for use in (
        lambda: a.plane.peer(b.incarnation, b.plane.addresses),
        lambda: a.plane.connect(b.plane.addresses[0]),
        lambda: a.plane.request(record, "x", b""),
        lambda: a.plane.send(record, "x", b""),
        a.plane.self_record,
    ):
        with pytest.raises(InvalidUse, match="closed"):
            use()
    assert not a.plane._thread.is_alive()


def test_closing_while_others_connect_leaves_nobody_hanging(plane):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        a = plane()
        address = tcp_address(silent)
        ended = []

        def connect():
            with pytest.raises(InvalidUse, match="closed"):
                a.plane.connect(address)
            ended.append(1)

        threads = [threading.Thread(target=connect) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        a.plane.close()
        for thread in threads:
            thread.join(5)
        assert len(ended) == 4


def test_handlers_must_not_wait_for_the_plane(pair):
    a, b, record = pair
    b.plane.handle("wait", lambda record, body: b.plane.connect(a.plane.addresses[0]))
    b.plane.handle("close", lambda record, body: b.plane.close())
    for topic in ("wait", "close"):
        with pytest.raises(PeerError, match="must not do"):
            a.plane.request(record, topic, b"", 5).result(5)
    assert not b.plane.closed


def test_an_abandoned_transfer_is_reported_when_it_is_quiet(plane, eventually):
    retired = []
    a, b = plane(callbacks=Callbacks(on_retired=retired.append)), plane()
    with socket.create_server(("127.0.0.1", 0)) as silent, Memory(b) as memory:
        record = a.plane.peer(os.urandom(16), [tcp_address(silent)])
        write = Write(record, memory)
        assert write.abandon(77) is Status.PENDING
        assert not retired
        a.plane.disconnect(record)
        assert eventually(lambda: retired) == [77]
        assert write.status(0) is Status.CLOSED
        write.release()


def test_a_callback_that_fails_is_logged_and_changes_nothing(plane, eventually, caplog):
    def broken(record):
        raise ZeroDivisionError

    a, b = plane(callbacks=Callbacks(on_lost=broken)), plane()
    wait_up(a.plane.peer(b.incarnation, b.plane.addresses))
    b.plane.close()
    eventually(lambda: "a callback of the control plane failed" in caplog.text)
    assert a.plane.connect(plane().plane.addresses[0]).state is State.UP


def threads():
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def test_no_descriptor_and_no_thread_is_left():
    gc.collect()
    before = descriptors(), threads()
    for _ in range(3):
        with open_plane() as a, open_plane(listen="127.0.0.1:0") as b:
            a.plane.connect(b.plane.addresses[1])
            with pytest.raises(PeerLost):
                a.plane.connect("unix:@nobody")
    gc.collect()
    assert (descriptors(), threads()) == before


def test_the_secret_is_in_no_repr(plane):
    a = plane()
    assert SECRET not in repr(vars(a.plane))
