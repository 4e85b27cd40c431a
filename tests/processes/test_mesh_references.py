"""Actors that are passed to other actors, which call them directly."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import queue
import socket
import threading
import time

import mesh_actors
import pytest
from patience import until

import transport
from transport import InvalidUse, PeerError
from transport.mesh import door as doors
from transport.mesh import messages as m
from transport.mesh.door import Door, knock
from transport.mesh.member import Pending
from transport.mesh.wheel import shared


@pytest.fixture(scope="module")
def mesh():
    with transport.local(3, name="three") as mesh:
        yield mesh


@pytest.fixture
def probes(mesh):
    return mesh.spawn("probe", mesh_actors.Probe, 10)


@pytest.fixture
def caller(mesh):
    return mesh.slice(rank=0).spawn("caller", mesh_actors.Caller)


def test_an_actor_calls_others_directly(caller, probes):
    assert caller.add.call_one(probes, 1).get(60) == [11] * 3
    assert caller.add.call_one(probes.slice(rank=slice(1, 3)), 2).get(60) == [12] * 2
    meeting = caller.add_async.call_one(probes, 3)
    assert meeting.get(60) == [13] * 3


def test_its_calls_keep_their_order(caller, probes):
    assert caller.hear.call_one(probes.slice(rank=2), range(200)).get(60) == list(range(200))


def test_the_owner_gets_its_own_back(caller, probes):
    back = caller.give_back.call_one(probes).get(60)
    assert back._team is probes._team
    assert back.sizes == {"rank": 3}
    assert back.add.call(1).get(60).values() == [11] * 3


@pytest.mark.parametrize("called_before", [True, False])
def test_who_calls_a_dead_actor_hears_how_it_ended(called_before):
    with transport.local(1, name="there") as there, transport.local(1) as here:
        probe = there.spawn("probe", mesh_actors.Probe)
        caller = here.spawn("caller", mesh_actors.Caller)
        if called_before:
            assert caller.add.call_one(probe, 1).get(60) == [1]
            waits = caller.what_fails.call_one(probe, "hang", 60)
            time.sleep(0.3)
        there._processes.member(0).process.kill()
        until(lambda: there.crashed)
        if called_before:
            kind, text = waits.get(60)
            assert (kind, "there" in text and "killed by SIGKILL" in text) == ("ActorCrashed", True)
        kind, text = caller.what_fails.call_one(probe, "where", 60).get(60)
        assert (kind, "there" in text and "killed by SIGKILL" in text) == ("ActorCrashed", True)


def test_another_mesh_of_the_same_owner(caller):
    with transport.local(2) as other:
        probes = other.spawn("probe", mesh_actors.Probe)
        assert caller.add.call_one(probes, 4).get(60) == [4, 4]
    with pytest.raises(InvalidUse, match="stopped"):
        pickle.dumps(probes)


def test_deaths_and_deadlines_reach_the_caller(caller):
    with transport.local(2) as other:
        probes = other.spawn("probe", mesh_actors.Probe)
        one, two = probes.slice(rank=0), probes.slice(rank=1)
        kind, text = caller.what_fails.call_one(one, "hang", 0.2).get(60)
        assert (kind, "deadline" in text) == ("ActorCrashed", True)
        kind, text = caller.what_fails.call_one(two, "kill", 60.0).get(60)
        assert (kind, "rank 1 of local" in text) == ("ActorCrashed", True)
        kind, text = caller.what_fails.call_one(two, "where", 60.0).get(60)
        assert (kind, "rank 1 of local" in text) == ("ActorCrashed", True)


def test_actors_beside_the_code_that_calls_them(caller):
    probe = transport.this_proc().spawn("beside", mesh_actors.Probe, 3)
    assert probe.add.call_one(1).get(60) == 4
    assert transport.this_proc().size() == 1
    assert caller.beside.call_one().get(60) == (6, True)


def test_a_mesh_of_processes_stays(mesh):
    with pytest.raises(TypeError, match="owner"):
        pickle.dumps(mesh)


# ------------------------------------------------------------------------------------------- doors
@pytest.fixture
def door():
    came = []
    door = Door(shared(), came.append)
    yield door, came
    for sock in came:
        sock.close()


def test_tcp_needs_the_secret_on_both_sides(door, monkeypatch):
    door, came = door
    monkeypatch.setenv("TRANSPORT_SECRET", "one secret of this test")
    door.open_tcp("127.0.0.1")
    tcp = door.text.split()[1]
    with knock(tcp, 30) as sock:
        sock.sendall(b"after the proof")
        until(lambda: came)
    monkeypatch.setenv("TRANSPORT_CONNECT_TIMEOUT", "0.5")
    plain = socket.create_connection(("127.0.0.1", int(tcp.rpartition(":")[2])), 30)
    with plain:
        plain.sendall(b"x" * 100)
        with contextlib.suppress(ConnectionResetError):
            assert plain.recv(1) == b""
    assert len(came) == 1


@pytest.fixture
def tcp(door, monkeypatch):
    """The address of a door that proves few at once."""
    monkeypatch.setenv("TRANSPORT_SECRET", "one secret of this test")
    monkeypatch.setattr(doors, "_UNPROVEN", 4)
    door[0].open_tcp("127.0.0.1")
    return door[0].text.split()[1]


def test_silent_strangers_lock_nobody_out(door, tcp):
    address = ("127.0.0.1", int(tcp.rpartition(":")[2]))
    with contextlib.ExitStack() as strangers:
        silent = [strangers.enter_context(socket.create_connection(address)) for _ in range(30)]
        with knock(tcp, 30):
            until(lambda: door[1])
        silent[0].settimeout(30)
        assert silent[0].recv(1) == b""  # the oldest gave way


def test_a_crowd_of_peers_all_come_in(door, tcp):
    def come():
        with knock(tcp, 60) as sock:
            sock.settimeout(60)
            came.put(sock.recv(1))

    came = queue.SimpleQueue()
    peers = [threading.Thread(target=come) for _ in range(12)]
    for peer in peers:
        peer.start()
    until(lambda: len(door[1]) == len(peers))
    for sock in door[1]:
        sock.send(b"1")
    assert [came.get(timeout=60) for _ in peers] == [b"1"] * len(peers)
    for peer in peers:
        peer.join()


def test_whoever_was_not_let_in_knocks_again():
    def hang_up_first():
        server.accept()[0].close()
        came.put(asyncio.run(doors._prove(server.accept()[0], 30, initiator=False)))

    came = queue.SimpleQueue()
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as server:
        patch.setenv("TRANSPORT_SECRET", "one secret of this test")
        thread = threading.Thread(target=hang_up_first)
        thread.start()
        with knock(f"127.0.0.1:{server.getsockname()[1]}", 30), came.get(timeout=30):
            thread.join()


def test_an_event_loop_may_run_where_one_knocks(door, tcp):
    async def come():
        knock(tcp, 30).close()

    asyncio.run(come())


GUESTS_MAY_NOT = ["spawn", "forget", "moved", "stop", "welcome"]


@pytest.mark.parametrize("kind", GUESTS_MAY_NOT)
def test_who_comes_through_the_door_only_calls(probes, kind):
    team, number = probes._team, probes.number
    said = {
        "spawn": m.Spawn(9, number, "other", 0, ()),
        "forget": m.Forget(number),
        "moved": m.Moved(team.id, 0, ""),
        "stop": m.Stop(),
        "welcome": m.Welcome(team.id, "other", 0, ()),
    }[kind]
    with knock(team.door(1), 30) as guest:
        guest.settimeout(30)
        guest.sendall(m.frame(said))
        assert guest.recv(1) == b""
    assert probes.add.call(1).get(60).values() == [11] * 3


def test_a_number_that_is_taken_harms_no_actor(probes):
    class Sink:
        def settle(self, index, reply):
            heard.put(reply)

    heard = queue.SimpleQueue()
    again = Pending(Sink(), 0, "again", time.monotonic() + 60)
    member = probes._team.member(1)
    member.ask(lambda n: m.Spawn(n, probes.number, "again", 0, ()), b"", again)
    with pytest.raises(transport.ActorError, match="with this number"):
        heard.get(timeout=60).value()
    assert probes.add.call(1).get(60).values() == [11] * 3


def test_nobody_behind_a_door():
    with pytest.raises(PeerError):
        knock("unix:@tensor-transport/mesh/nobody", 1)
    with pytest.raises(PeerError):
        knock("", 1)
