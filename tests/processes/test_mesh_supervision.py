"""What is done about processes that end: by policy, by hand, by who is above."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from pathlib import Path

import mesh_actors
import pytest
from patience import until

import transport
from transport import ActorCrashed, ActorError, InvalidUse, OutOfRange, Policy, ProcessMesh
from transport.mesh.hosts.local import LocalHost


@pytest.fixture
def mesh():
    with transport.local(3, name="three") as mesh:
        yield mesh


@pytest.fixture
def probes(mesh):
    return mesh.spawn("probe", mesh_actors.Probe, 10)


def pids(probes):
    return [pid for _, _, pid in probes.where.call().get(60).values()]


def crash(one):
    with pytest.raises(ActorCrashed):
        one.kill.call_one().get(60)


def test_replace_binds_every_handle_anew(mesh, probes):
    other = mesh.slice(rank=slice(1, 3)).spawn("other", mesh_actors.Probe, 20)
    caller = mesh.slice(rank=0).spawn("caller", mesh_actors.Caller)
    assert caller.add.call_one(other, 1).get(60) == [21, 21]
    view, before = probes.slice(rank=2), pids(probes)
    crash(view)
    assert list(mesh.crashed) == [2]
    mesh.replace(2)
    assert mesh.crashed == {}
    after = pids(probes)
    assert (after[:2], after[2] != before[2]) == (before[:2], True)
    assert view.add.call_one(1).get(60) == 11
    assert [rank for rank, *_ in other.where.call().get(60).values()] == [0, 1]
    assert caller.add.call_one(other, 2).get(60) == [22, 22]
    assert caller.add.call_one(probes, 2).get(60) == [12] * 3


def test_replace_a_process_that_lives(mesh, probes):
    hanging, before = probes.slice(rank=1).hang.call_one(), pids(probes.slice(rank=0))
    mesh.replace(1)
    with pytest.raises(ActorCrashed, match="was replaced"):
        hanging.get(60)
    assert probes.add.call(1).get(60).values() == [11] * 3
    assert pids(probes.slice(rank=0)) == before
    with pytest.raises(OutOfRange):
        mesh.slice(rank=0).replace(1)


class Interrupted(LocalHost):
    """Has something done when it has started a process that takes a place."""

    then = staticmethod(lambda: None)

    def start(self, ranks):
        processes = super().start(ranks)
        self.then()
        self.last = processes[-1]
        return processes


def test_a_stop_ends_what_is_just_taking_a_place():
    host = Interrupted(logs="discard")
    mesh = ProcessMesh.start(host, {"rank": 2})
    stop = threading.Thread(target=mesh.stop)

    def stop_first():
        stop.start()
        until(lambda: mesh.stopped)

    host.then = stop_first
    with pytest.raises(InvalidUse, match="stopped meanwhile"):
        mesh.replace(1)
    stop.join(60)
    assert host.last.ended.done()


@pytest.mark.parametrize("policy", ["restart", "replace"])
def test_a_policy_brings_a_rank_back(mesh, probes, policy):
    mesh.supervise(policy)
    for rank in (0, 1):
        crash(probes.slice(rank=rank))
    until(lambda: not mesh.crashed)
    assert probes.add.call(1).get(60).values() == [11] * 3


@pytest.mark.parametrize(("policy", "same"), [("restart", True), ("replace", False)])
def test_an_actor_that_breaks(mesh, probes, policy, same):
    mesh.supervise(policy)
    one = probes.slice(rank=1)
    one.hear.call_one("before").get(60)
    (before,) = pids_of(one)
    one.fail.broadcast(KeyError("unheard"))
    until(lambda: answers(one, []))
    assert (pids_of(one) == [before]) is same


def pids_of(one):
    return [one.where.call_one().get(60)[2]]


def answers(one, heard):
    try:
        return one.all_heard.call_one().get(60) == heard
    except ActorError:
        return False


def test_too_many_crashes_are_escalated(mesh, probes):
    told = queue.SimpleQueue()
    policy = Policy("restart", limit=2, backoff=0.01)
    mesh.supervise(policy, lambda failure: told.put(failure) or True)
    for _ in range(2):
        crash(probes.slice(rank=1))
        until(lambda: not mesh.crashed)
    crash(probes.slice(rank=1))
    failure = told.get(timeout=60)
    assert (failure.rank, failure.cause) == (1, "killed by SIGKILL")
    assert list(mesh.crashed) == [1]
    assert probes.slice(rank=0).add.call_one(1).get(60) == 11


def test_the_hook_is_told_once(mesh, probes):
    told = queue.SimpleQueue()
    mesh.supervise(on_failure=lambda failure: told.put(failure) or True)
    crash(probes.slice(rank=2))
    probes.slice(rank=0).fail.broadcast(KeyError("unheard"))
    failures = {told.get(timeout=60).rank: True for _ in range(2)}
    assert failures == {0: True, 2: True}
    assert told.empty()


def test_what_the_program_mends_itself_is_no_error(mesh, probes, caplog):
    """It is noticed by nobody's call, and replaced before anything is logged."""
    caplog.set_level(logging.INFO, "transport")
    os.kill(pids(probes)[1], signal.SIGKILL)
    until(lambda: mesh.crashed)
    mesh.replace(1)
    mesh.stop()
    until(lambda: "nobody handled" in caplog.text)
    assert [record.levelname for record in caplog.records] == ["INFO"]


@pytest.mark.parametrize("parent", [mesh_actors.Parent, mesh_actors.AsyncParent])
def test_the_actor_that_made_the_mesh_is_told(mesh, parent):
    boss = mesh.slice(rank=0).spawn("parent", parent, True, None)
    boss.kill.call_one(1).get(60)
    until(lambda: boss.heard.call_one().get(60) == [(1, "killed by SIGKILL")])
    assert mesh.crashed == {}


def test_what_it_does_not_handle_goes_up(mesh):
    told = queue.SimpleQueue()
    mesh.supervise(on_failure=lambda failure: told.put(failure) or True)
    boss = mesh.slice(rank=2).spawn("parent", mesh_actors.Parent, False, None)
    boss.kill.call_one(0).get(60)
    failure = told.get(timeout=60)
    assert failure.rank == 2
    assert "passed on" in failure.cause
    assert "rank 0 of children" in str(failure)


def test_children_of_children_end_with_the_controller():
    with transport.local(1) as mesh:
        boss = mesh.spawn("parent", mesh_actors.Parent, True, None)
        grandchildren = boss.pids.call_one().get(60)
        mesh._processes.member(0).process.kill()
    for pid in grandchildren:
        until(lambda pid=pid: not alive(pid))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_policy_is_one_of_three(mesh):
    with pytest.raises(InvalidUse, match="restart"):
        mesh.supervise("retry")
    with pytest.raises(InvalidUse):
        Policy("restart", limit=-1)
    assert [Policy(backoff=1.0, longest=3.0).pause(n) for n in range(4)] == [0.0, 1.0, 2.0, 3.0]
