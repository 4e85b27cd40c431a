"""A mesh over processes that a launcher started: who owns, who serves, and who hears of an end."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from patience import until

from transport import PeerRefused, Unavailable
from transport.control.address import TcpAddress
from transport.control.secret import Secret
from transport.mesh.hosts import fleet as fleets
from transport.mesh.hosts.agent import Agent, serve
from transport.mesh.hosts.fleet import Fleet
from transport.mesh.process import Cause, Start

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 60.0
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "launch" / "train.py"
SECRET = "0123456789abcdef of the tests"

# One program in every process; it goes on after ranks_host in the first alone.
PROGRAM = """
import os, sys
from transport.mesh.hosts.ranks import ranks_host
from transport.mesh.process import Start

host = ranks_host(timeout=60, spares=int(sys.argv[1]))
processes = host.start([Start(rank, "actor", {"NAME": f"r{rank}"}) for rank in range(host.size)])
print("pids", *(process.pid for process in processes), flush=True)
sys.stdin.readline()
for process in processes:
    process.stop(30)
print("ends", *(process.ended.result(0).code for process in processes), flush=True)
host.close()
"""


@contextlib.contextmanager
def job(
    count: int, spares: int = 0, program: str = PROGRAM, **more: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """As many processes as a launcher would have started, the last ones first."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    common = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRANSPORT_SECRET": SECRET,
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        **more,
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(spares)],
            env={**os.environ, **common, "RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in reversed(range(count))
    ][::-1]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def pids_of(owner: subprocess.Popen[str]) -> list[int]:
    assert owner.stdout
    said = owner.stdout.readline().split()
    assert said[:1] == ["pids"], (said, owner.stderr and owner.stderr.read())
    return [int(pid) for pid in said[1:]]


def wait_gone(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            life = os.pidfd_open(pid)
            try:
                assert select.select([life], [], [], PATIENCE)[0], f"process {pid} is still there"
            finally:
                os.close(life)


def test_the_first_process_owns_and_all_end_well_when_it_is_through():
    with job(3, TRANSPORT_MESH_PROCESSES="2") as started:
        pids = pids_of(started[0])
        assert len(set(pids)) == 6
        assert not set(pids) & {process.pid for process in started}
        names = [
            dict(item.split("=", 1) for item in filter(None, entry.split("\0")) if "=" in item)
            for entry in (Path(f"/proc/{pids[n]}/environ").read_text() for n in (0, 5))
        ]
        assert [name["RANK"] for name in names] == ["0", "2"]  # the launcher's, block by block
        out, _ = started[0].communicate("\n", timeout=PATIENCE)
        assert out.split() == ["ends", *["0"] * 6]
        assert [process.wait(PATIENCE) for process in started] == [0, 0, 0]
        wait_gone(*pids)


def test_actors_run_there_and_a_lost_rank_is_replaced():
    with job(2, program="from mesh_hosts import count_on; count_on('ranks')") as started:
        _, err = started[0].communicate(timeout=PATIENCE)
        assert started[0].returncode == 0, err
        assert started[1].wait(PATIENCE) == 0


def test_a_killed_owner_ends_every_process_of_the_job():
    with job(3, spares=1) as started:
        pids = pids_of(started[0])
        started[0].kill()
        assert [process.wait(PATIENCE) for process in started[1:]] == [1, 1]
        assert "owner is gone" in started[1].communicate()[1]
        wait_gone(*pids)


def test_an_interrupt_ends_a_serving_process_without_a_trace():
    with job(2) as started:
        pids = pids_of(started[0])
        started[1].send_signal(signal.SIGINT)
        _, err = started[1].communicate(timeout=PATIENCE)
        assert started[1].returncode == 128 + signal.SIGINT
        assert "Traceback" not in err
        wait_gone(pids[1])


@pytest.mark.slow
def test_torchrun_starts_a_mesh():
    pytest.importorskip("torch", reason="torch: torchrun comes with it")
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, str(EXAMPLE), "--steps=1"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TRANSPORT_SECRET": SECRET,
            "TRANSPORT_MESH_ON": "ranks",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *places, step = done.stdout.splitlines()  # of the first process alone
    assert [place.split(":")[0] for place in places] == ["rank 0", "rank 1"]
    assert step == "step 1 [2.0, 2.0]"


# ------------------------------------------------------------------------ the fleet and its agents
class World:
    """A fleet in this process, and agents in threads of it."""

    def __init__(self, agents: int, timeout: float = PATIENCE) -> None:
        self.lines: queue.Queue[tuple[str, int, str]] = queue.Queue()
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = TcpAddress("127.0.0.1", self.door.getsockname()[1])
        self.fleet = Fleet(
            [self.door],
            Secret(SECRET.encode()),
            "the job",
            agents,
            logs=lambda *line: self.lines.put(line),
            timeout=timeout,
        )
        self.agents: list[tuple[Agent, threading.Thread]] = []
        for index in range(agents):
            self.join(index)

    def join(self, index: int) -> None:
        agent = Agent([self.address], Secret(SECRET.encode()), "the job", index)
        thread = threading.Thread(target=serve, args=(agent, PATIENCE, {}))
        thread.start()
        self.agents.append((agent, thread))

    def lose(self, index: int) -> None:
        """As when its machine is gone: the connection ends."""
        agent, thread = self.agents[index]
        assert agent._socket
        agent._socket.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)

    def close(self) -> None:
        self.fleet.close()
        for _, thread in self.agents:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def world() -> Iterator[World]:
    made = World(3)
    yield made
    made.close()


def starts(*ranks: int) -> list[Start]:
    return [Start(rank, "actor") for rank in ranks]


def test_links_are_connected_and_ends_are_known_by_their_cause(world: World):
    processes = world.fleet.start(starts(*range(6)))
    assert [process.agent.index for process in processes] == [0, 0, 1, 1, 2, 2]  # type: ignore[attr-defined]
    os.kill(processes[1].pid, signal.SIGSEGV)
    assert processes[1].ended.result(PATIENCE) == Cause(signal=signal.SIGSEGV)
    processes[2].kill()
    assert processes[2].ended.result(PATIENCE) == Cause(signal=signal.SIGKILL)
    processes[3].socket.close()
    assert processes[3].ended.result(PATIENCE) == Cause(code=0)
    for process in processes:
        process.stop(PATIENCE)
    assert processes[5].ended.result(0) == Cause(code=0)


def test_a_lost_agent_loses_its_ranks_alone_and_another_takes_them(world: World):
    processes = world.fleet.start(starts(0, 1, 2))
    world.lose(1)
    assert "connection" in str(processes[1].ended.result(PATIENCE))
    wait_gone(processes[1].pid)
    assert not processes[0].ended.done()
    assert not processes[2].ended.done()
    (replaced,) = world.fleet.start(starts(1))
    assert replaced.agent.index != 1  # type: ignore[attr-defined]
    for process in (*processes, replaced):
        process.stop(PATIENCE)


def test_an_agent_that_comes_back_is_used_again(world: World):
    processes = world.fleet.start(starts(0, 1, 2))
    world.lose(1)
    processes[1].ended.result(PATIENCE)
    world.join(1)
    until(lambda: 1 in world.fleet._agents)
    (replaced,) = world.fleet.start(starts(1))
    assert replaced.agent.index == 1  # type: ignore[attr-defined]
    for process in (*processes, replaced):
        process.stop(PATIENCE)


def test_who_did_not_come_is_named():
    world = World(0)
    world.fleet.close()
    world = World(1, timeout=0.5)
    world.fleet._wanted = 4
    with pytest.raises(Unavailable, match=r"3 of 4 .*: 1, 2, 3"):
        world.fleet.start(starts(0, 1, 2, 3))
    world.close()


@pytest.mark.parametrize(("secret", "name"), [("another secret 12", "the job"), (SECRET, "other")])
def test_a_stranger_is_not_taken(world: World, secret: str, name: str):
    stranger = Agent([world.address], Secret(secret.encode()), name, 2)
    with pytest.raises(Exception, match=r"nobody at .* took this process") as raised:
        stranger.run(None, 0.5)  # type: ignore[arg-type]
    assert isinstance(raised.value, PeerRefused) == (secret != SECRET)
    processes = world.fleet.start(starts(0, 1, 2))
    for process in processes:
        process.stop(PATIENCE)


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"TENSOR\x03\x00\xff\xff\xff\x7f"]
)
def test_what_is_no_agent_harms_nobody(world: World, said: bytes):
    with socket.create_connection((world.address.host, world.address.port)) as stranger:
        stranger.settimeout(PATIENCE)
        stranger.sendall(said)
        with contextlib.suppress(OSError):  # it may have hung up
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1 << 12):
                pass
    processes = world.fleet.start(starts(0, 1, 2))
    for process in processes:
        process.stop(PATIENCE)


def test_silent_strangers_lock_no_agent_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fleets, "_STRANGERS", 0)
    world = World(2)
    with contextlib.ExitStack() as strangers:
        address = (world.address.host, world.address.port)
        silent = [strangers.enter_context(socket.create_connection(address)) for _ in range(30)]
        processes = world.fleet.start(starts(0, 1))
        silent[0].settimeout(PATIENCE)
        assert silent[0].recv(1) == b""  # the oldest gave way
        for process in processes:
            process.stop(PATIENCE)
        world.close()
