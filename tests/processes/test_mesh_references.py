"""Actors that are passed to other actors, which call them directly."""

from __future__ import annotations

import contextlib
import pickle
import socket

import mesh_actors
import pytest
from patience import until

import transport
from transport import InvalidUse, PeerError
from transport.mesh.door import Door, knock
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


def test_nobody_behind_a_door():
    with pytest.raises(PeerError):
        knock("unix:@tensor-transport/mesh/nobody", 1)
    with pytest.raises(PeerError):
        knock("", 1)
