"""Processes of a mesh that die, hang and fall silent: exactly the calls that need them fail."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import mesh_actors
import pytest
from patience import until

import transport
from transport import ActorCrashed, ActorError, InvalidUse, Settings


@pytest.fixture
def mesh():
    with transport.local(3, name="three") as mesh:
        yield mesh


@pytest.fixture
def probes(mesh):
    return mesh.spawn("probe", mesh_actors.Probe, 10)


def pid_of(probes, rank):
    return probes.slice(rank=rank).where.call_one().get(60)[2]


def test_kill_in_mid_call_fails_the_calls_that_need_it(probes):
    last, others = probes.slice(rank=2), probes.slice(rank=slice(0, 2))
    needs = [last.hang.call_one(), probes.add.call(1)]
    needless = [others.add.call(n) for n in range(20)]
    probes._team.member(2).process.kill()
    for future in needs:
        with pytest.raises(ActorCrashed) as raised:
            future.get(60)
        assert raised.value.rank == 2
        assert raised.value.cause == "killed by SIGKILL"
        assert raised.value.host
    assert [future.get(60).values() for future in needless] == [[10 + n] * 2 for n in range(20)]
    with pytest.raises(ActorCrashed, match="rank 2 of three"):
        probes.add.call(1).get(60)
    assert others.add.call(1).get(60).values() == [11, 11]


@pytest.mark.parametrize(
    ("die", "cause"),
    [
        (lambda one: one.kill.call_one(), "killed by SIGKILL"),
        (lambda one: one.exit.call_one(7), "exit code 7"),
        (lambda one: one.end.call_one(0), "exit code 0"),
    ],
)
def test_ways_to_die(probes, die, cause):
    with pytest.raises(ActorCrashed, match=cause):
        die(probes.slice(rank=1)).get(60)
    assert probes.slice(rank=0).add.call_one(1).get(60) == 11


def test_the_last_lines_come_with_the_crash(probes):
    with pytest.raises(ActorCrashed, match="my last words") as raised:
        probes.slice(rank=1).end.call_one(3).get(60)
    assert raised.value.logs == ("my last words",)


def test_a_hang_past_the_deadline_is_a_crash(probes):
    one = probes.slice(rank=1)
    with pytest.raises(ActorCrashed, match=r"probe\.hang did not answer within its deadline"):
        one.hang.options(deadline=0.3).call_one().get(60)
    with pytest.raises(ActorCrashed):
        one.add.call_one(1).get(60)


def test_an_actor_that_is_not_made_in_time_is_a_crash():
    with transport.local(1, settings=Settings(spawn_deadline=3.0)) as mesh:
        with pytest.raises(ActorCrashed, match=r"slow\.__init__ did not answer"):
            mesh.spawn("slow", mesh_actors.Slow)
        mesh.replace(0)
        assert mesh.spawn("probe", mesh_actors.Probe).add.call_one(1).get(60) == 1


def test_a_hang_is_found_when_nobody_waits(probes):
    future = probes.slice(rank=1).hang.options(deadline=0.2).call_one()
    cause = probes._team.member(1).process.ended.result(60)
    assert cause.signal == signal.SIGKILL
    assert isinstance(future.exception(60), ActorCrashed)


def test_a_sync_endpoint_that_is_busy_still_answers_heartbeats():
    settings = Settings.from_env(heartbeat=0.1, heartbeat_timeout=2.0)
    with transport.local(2, settings=settings) as mesh:
        probes = mesh.spawn("probe", mesh_actors.Probe)
        busy = probes.slice(rank=0).hang.options(deadline=4.0).call_one()
        with pytest.raises(ActorCrashed, match="deadline"):
            busy.get(60)


def test_a_process_that_is_silent_is_lost():
    settings = Settings.from_env(heartbeat=0.1, heartbeat_timeout=3.0)
    with transport.local(2, settings=settings) as mesh:
        probes = mesh.spawn("probe", mesh_actors.Probe)
        pid = pid_of(probes, 0)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: stopped(pid))
        with pytest.raises(ActorCrashed, match="silent"):
            probes.slice(rank=0).add.call_one(1).get(60)
        assert probes.slice(rank=1).add.call_one(1).get(60) == 1


def stopped(pid):
    """Whether every thread of it is (proc_pid_stat(5))."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in threads} == {"T"}


def test_an_exception_in_a_broadcast_breaks_that_actor_only(mesh, probes):
    other = mesh.spawn("other", mesh_actors.Probe, 20)
    probes.slice(rank=1).fail.broadcast(KeyError("unheard"))
    with pytest.raises(ActorCrashed, match="KeyError in a broadcast"):
        probes.slice(rank=1).add.call_one(1).get(60)
    assert probes.slice(rank=0).add.call_one(1).get(60) == 11
    assert other.add.call(1).get(60).values() == [21] * 3


def test_choose_avoids_the_dead(probes):
    with pytest.raises(ActorError):
        probes.slice(rank=0).kill.call_one().get(60)
    for _ in range(10):
        assert probes.where.choose().get(60)[0] != 0


PROGRAM = """
import os, sys, mesh_actors, transport
mesh = transport.local(4)
probes = mesh.spawn("probe", mesh_actors.Probe)
busy = probes.slice(rank=3).hang.call_one()
print(*[pid for _, (_, _, pid) in probes.slice(rank=slice(0, 3)).where.call().get(60)], flush=True)
{end}
"""


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), 9)", "sys.exit(0)", "raise KeyError", "os._exit(3)"]
)
def test_no_process_outlives_its_controller(end):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        timeout=120,
        check=False,
    )
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 3
    for pid in pids:
        await_end(pid)


def await_end(pid):
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    ended = poll.poll(30_000)
    os.close(handle)
    assert ended, f"process {pid} lives on"


def test_an_owner_that_was_stopped_does_not_blame_its_processes(tmp_path):
    """Nobody could be heard while it was; all that have answered since are alive."""
    program = (
        "import sys, mesh_actors, transport\n"
        "settings = transport.Settings.from_env(heartbeat=0.1, heartbeat_timeout=2.0)\n"
        "mesh = transport.local(2, settings=settings)\n"
        "probes = mesh.spawn('probe', mesh_actors.Probe)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "print(probes.add.call(1).get(60).values(), mesh.crashed, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    with owner:
        assert owner.stdout.readline() == "ready\n"
        owner.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, owner.pid, os.WSTOPPED | os.WNOWAIT)
        select.select([], [], [], 3.0)  # longer than a silence that would be the end
        owner.send_signal(signal.SIGCONT)
        out, _ = owner.communicate("go on\n", timeout=60)
    assert out == "[1, 1] {}\n"


def test_a_forked_child_stops_nothing(mesh, probes):
    pid = os.fork()
    if pid == 0:
        mesh.stop(600.0)  # as `with` and sys.exit() do
        os._exit(0)
    try:
        until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert probes.add.call(1).get(60).values() == [11] * 3


def test_a_forked_child_is_told_so(probes):
    pid = os.fork()
    if pid == 0:
        try:
            probes.add.call(1)
        except InvalidUse:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert probes.add.call(1).get(60).values() == [11] * 3
