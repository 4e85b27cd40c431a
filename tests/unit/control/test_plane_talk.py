"""Whole control planes over native engines: asking, telling, closing."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from control_planes import (
    SECRET,
    Memory,
    Write,
    descriptors,
    native_state,
    open_plane,
    say,
)
from relay import tcp_address, wait_up

from transport.control import messages
from transport.control.plane import Callbacks
from transport.control.records import State
from transport.errors import (
    DeadlineExceeded,
    InvalidUse,
    PeerError,
    PeerLost,
    Status,
)


# ---------------------------------------------------------------------------------------- talking
def test_questions_are_answered_by_functions_and_coroutines(pair):
    a, b, record = pair

    async def later(record, body):
        await asyncio.sleep(0.01)
        return body * 2

    b.plane.handle("now", lambda record, body: record.incarnation + body)
    b.plane.handle("later", later)
    slow, fast = (a.plane.request(record, topic, b"x", 60) for topic in ("later", "now"))
    assert fast.result(60) == a.incarnation + b"x"
    assert slow.result(60) == b"xx"


def test_a_question_may_be_asked_before_the_peer_is_up(plane):
    a, b = plane(), plane()
    record = a.plane.peer(b.incarnation, b.plane.addresses)
    replies = [a.plane.request(record, "echo", bytes([i]), 60) for i in range(50)]
    assert [reply.result(60) for reply in replies] == [bytes([i]) for i in range(50)]


def test_errors_of_a_handler_reach_the_asker(pair, caplog):
    a, b, record = pair

    def refuse(record, body):
        raise InvalidUse("there is no region named 'w'")

    b.plane.handle("refuse", refuse)
    b.plane.handle("break", lambda record, body: 1 / 0)
    with pytest.raises(PeerError, match="no region named 'w'"):
        a.plane.request(record, "refuse", b"", 60).result(60)
    with pytest.raises(PeerError, match="its log says why"):
        a.plane.request(record, "break", b"", 60).result(60)
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(PeerError, match="nobody here answers 'what'"):
        a.plane.request(record, "what", b"", 60).result(60)


def test_too_large_a_message_is_refused_on_either_side(pair):
    a, b, record = pair
    b.plane.handle("large", lambda record, body: bytes(1 << 18))
    with pytest.raises(InvalidUse, match="over 262144"):
        a.plane.request(record, "x", bytes(1 << 18), 60).result(60)
    with pytest.raises(PeerError, match="over 262144"):
        a.plane.request(record, "large", b"", 60).result(60)
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
        a.plane.request(record, "never", b"", 0.05).result(60)


def test_a_lost_peer_ends_its_questions_at_once(pair):
    a, b, record = pair

    async def never(record, body):
        await asyncio.sleep(60)
        return b""

    b.plane.handle("never", never)
    reply = a.plane.request(record, "never", b"", 60)
    b.plane.close()
    with pytest.raises(PeerLost):
        reply.result(60)
    with pytest.raises(PeerLost):
        a.plane.request(record, "never", b"", 60).result(60)


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
    assert a.plane.request(record, "echo", b"x", 60).result(60) == b"x"


def test_many_open_questions_are_bounded(pair, eventually):
    a, b, record = pair
    release = asyncio.Event()

    async def wait(record, body):
        await release.wait()
        return b"done"

    b.plane.handle("wait", wait)
    replies = [a.plane.request(record, "wait", b"", 60) for _ in range(300)]
    eventually(lambda: sum(reply.done() for reply in replies) == 44)
    b.plane._loop.call_soon_threadsafe(release.set)
    results = []
    for reply in replies:
        try:
            results.append(reply.result(60))
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
            thread.join(60)
        assert len(ended) == 4


def test_handlers_must_not_wait_for_the_plane(pair):
    a, b, record = pair
    b.plane.handle("wait", lambda record, body: b.plane.connect(a.plane.addresses[0]))
    b.plane.handle("close", lambda record, body: b.plane.close())
    for topic in ("wait", "close"):
        with pytest.raises(PeerError, match="must not do"):
            a.plane.request(record, topic, b"", 60).result(60)
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


def test_no_descriptor_and_no_thread_is_left(eventually):
    gc.collect()
    before = descriptors(), threads()
    for _ in range(3):
        with open_plane() as a, open_plane(listen="127.0.0.1:0") as b:
            a.plane.connect(b.plane.addresses[1])
            with pytest.raises(PeerLost):
                a.plane.connect("unix:@nobody")
    gc.collect()
    # A thread that was joined stays in the kernel's list until it has ended there, too.
    eventually(lambda: (descriptors(), threads()) == before)


def test_the_secret_is_in_no_repr(plane):
    a = plane()
    assert SECRET not in repr(vars(a.plane))
