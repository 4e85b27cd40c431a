"""Control planes over real native engines in processes of their own: meeting, dying, restarting."""

from __future__ import annotations

import os
import signal
import time

import pytest
from control_planes import SECRET, Child, descriptors, open_plane
from patience import until
from possessions import uncollected
from relay import wait_up

from transport.control.records import State
from transport.errors import PeerLost, PeerRefused, StaleRegion


def test_the_kernel_names_the_process_at_the_other_end():
    with open_plane() as one, Child() as child:
        record = one.plane.connect(child.addresses[0])
        assert (record.link, record.pid, record.providers) == ("unix", child.pid, ("shm",))
        assert one.plane.request(record, "echo", b"x" * 100_000, 60).result(60) == b"x" * 100_000


def test_the_child_connects_back_over_the_same_link():
    with open_plane() as one, Child() as child:
        record = one.plane.connect(child.addresses[0])
        answer = child.do("connect", one.plane.addresses[0])
        assert answer == {"link": "unix", "providers": ["shm"], "echo": "hello"}
        assert one.plane.peers == (record,)
        assert child.do("peers") == [[one.incarnation.hex(), "up"]]


def test_a_forgotten_record_gives_its_native_peer_back():
    """Seen by the descriptors of its shared memory, which go with it and not before."""
    with open_plane() as one, Child() as child, uncollected():
        record = one.plane.peer(child.incarnation, child.addresses)
        wait_up(record)
        connected = descriptors()
        one.plane.disconnect(record)
        until(lambda: descriptors() < connected)
        assert descriptors() == connected - 1, "of a lost peer only the socket is closed"
        one.lost.clear()
        del record
        until(lambda: descriptors() < connected - 1)


def test_whoever_heard_why_a_peer_is_lost_does_not_keep_it():
    """What is raised holds its frames by its traceback, and they hold the record."""
    with open_plane() as one, Child() as child, uncollected():
        before = descriptors()
        record = one.plane.connect(child.addresses[0])
        child.kill()
        until(lambda: one.lost)
        for _ in range(2):
            with pytest.raises(PeerLost):
                wait_up(record)
            with pytest.raises(PeerLost):
                one.plane.request(record, "echo", b"", 60).result()
        one.lost.clear()
        del record
        until(lambda: descriptors() <= before)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
def test_over_tcp(listen):
    with open_plane(providers=("tcp",)) as one, Child(providers=["tcp"], listen=listen) as child:
        record = one.plane.connect(child.addresses[1])
        assert (record.link, record.providers) == ("tcp", ("tcp",))
        assert one.plane.request(record, "echo", b"x" * 100_000, 60).result(60) == b"x" * 100_000


@pytest.mark.parametrize("providers", [("shm", "tcp"), ("tcp",)])
def test_a_killed_peer_is_lost_at_once(providers):
    with (
        open_plane(providers=providers, liveness=1000.0) as one,
        Child(providers=providers, listen="127.0.0.1:0") as child,
    ):
        record = one.plane.connect(child.addresses[1])
        child.kill()
        until(lambda: record.state is State.LOST)  # its silence alone would not do it
        assert isinstance(record.error, PeerLost)
        with pytest.raises(PeerLost):
            wait_up(one.plane.peer(child.incarnation, child.addresses))


def test_a_stopped_peer_is_lost_when_its_silence_lasts():
    """A stopped process answers nothing, though its sockets stay open."""
    with open_plane(liveness=0.5) as one, Child() as child:
        record = one.plane.connect(child.addresses[0])
        os.kill(child.pid, signal.SIGSTOP)
        try:
            until(lambda: record.state is State.LOST)
            assert isinstance(record.error, PeerLost)
        finally:
            os.kill(child.pid, signal.SIGCONT)


def test_a_restarted_peer_at_the_same_address_is_stale():
    with open_plane(providers=("tcp",)) as one:
        with Child(providers=["tcp"], listen="127.0.0.1:0") as child:
            address = child.addresses[1]
            one.plane.connect(address)
            child.kill()
        with Child(providers=["tcp"], listen=address) as again:
            until(lambda: not one.plane.peers)
            with pytest.raises(StaleRegion, match=f"{address} is another incarnation"):
                wait_up(one.plane.peer(child.incarnation, [address]))
            assert one.plane.connect(address).incarnation == again.incarnation


def test_another_secret_is_refused_on_both_sides():
    with open_plane() as one, Child(secret="not " + SECRET, listen="127.0.0.1:0") as child:
        for address in child.addresses:
            with pytest.raises(PeerRefused, match="different secrets"):
                one.plane.connect(address)
        answer = child.do("connect", one.plane.addresses[0])
        assert answer["error"] == "PeerRefused"
        assert SECRET not in answer["text"]
        assert one.plane.peers == ()


def test_a_fork_of_a_dead_engine_keeps_nobody_waiting():
    """The forked child has copies of the doors; a connection to them must not be accepted."""
    with open_plane(connect_timeout=60.0) as one, Child(listen="127.0.0.1:0") as child:
        fork = child.do("fork", 150)
        child.kill()
        try:
            for address in child.addresses:
                began = time.monotonic()
                with pytest.raises(PeerLost):
                    one.plane.connect(address)
                assert time.monotonic() - began < 30
        finally:
            os.kill(fork, signal.SIGKILL)


def test_two_processes_that_connect_to_each_other_at_once():
    with Child() as one, Child() as other:
        for child, peer in ((one, other), (other, one)):
            child.process.stdin.write(f'["connect", "{peer.addresses[0]}"]\n')
        for child in (one, other):
            child.process.stdin.flush()
        for child in (one, other):
            line = child.process.stdout.readline()
            assert '"echo": "hello"' in line
        for child in (one, other):
            assert len(child.do("peers")) == 1
