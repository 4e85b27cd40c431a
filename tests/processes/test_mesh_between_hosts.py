"""A mesh over two hosts, which are network namespaces: only TCP leads from one to the other."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 240.0
NEAR, FAR = "10.77.3.1", "10.77.3.2"

# In every process; the first one goes on after processes().
PROGRAM = """
import sys, numpy, mesh_actors, transport
from transport import ActorCrashed
from transport.mesh import tensors

with transport.processes(on="ranks") as mesh:
    probes = mesh.spawn("probe", mesh_actors.Probe)
    value = numpy.arange(1 << 20)
    for echoed in probes.echo.call(value).get(60).values():
        assert numpy.array_equal(echoed, value)
    near, far, other = (probes.slice(rank=rank) for rank in range(3))
    kept = far.echo.options(keep="remote").call_one(value).get(60)
    for actor in (near, far, other):  # each reads from where it lies
        assert actor.total.call_one(kept).get(60) == value.sum()
    peers = tensors.here().engine.peers
    moved = [peer.counters()["tcp"] for peer in peers if "tcp" in peer.providers]
    print("by tcp", len(moved), moved, flush=True)
    far.kill.broadcast()
    try:
        far.where.call_one().get(60)
    except ActorCrashed as crash:
        print("crashed:", crash.cause, flush=True)
    assert near.add.call_one(1).get(60) == other.add.call_one(1).get(60) == 1
    mesh.replace(1)
    assert numpy.array_equal(far.echo.call_one(value).get(60), value)
    print("replaced", flush=True)
    sys.stdin.readline()
    try:
        probes.add.options(deadline=60).call(1).get()
    except ActorCrashed as crash:
        print("lost:", crash.rank, crash.cause, flush=True)
    print("near:", near.add.call_one(1).get(60), flush=True)
"""


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two of them, joined by a veth pair."""
    names = f"mesh-near-{os.getpid()}", f"mesh-far-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                ip("netns", "add", name)
            except OSError as error:
                pytest.skip(f"netns: {error}")
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip(
            "link",
            "add",
            "m0",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "m0",
            "netns",
            names[1],
        )
        for name, address in zip(names, (NEAR, FAR)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "m0")
            ip("-n", name, "link", "set", "m0", "up")
        yield names


@contextlib.contextmanager
def job(*hosts: str) -> Iterator[list[subprocess.Popen[str]]]:
    """A process on each of these hosts, as a launcher starts them."""
    common = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRANSPORT_SECRET": "0123456789abcdef of the tests",
        "TRANSPORT_HEARTBEAT": "0.5",
        "TRANSPORT_HEARTBEAT_TIMEOUT": "5",
        "WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": NEAR,
        "MASTER_PORT": "29517",
    }
    with contextlib.ExitStack() as stack:
        started = []
        for rank, host in enumerate(hosts):
            process = subprocess.Popen(
                ["ip", "netns", "exec", host, sys.executable, "-c", PROGRAM],
                env={**os.environ, **common, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            stack.callback(process.communicate)
            stack.callback(process.kill)
        yield started


def test_tensors_go_between_hosts_by_tcp_and_a_lost_host_loses_its_ranks_alone(
    hosts: tuple[str, str],
):
    near, far = hosts
    with job(near, far, far) as started:
        said = [started[0].stdout.readline() for _ in range(3)]
        assert said[0].startswith("by tcp 2 "), (said, started[0].stderr.read())
        assert said[1:] == ["crashed: killed by SIGKILL\n", "replaced\n"]
        ip("-n", near, "link", "set", "m0", "down")
        out, err = started[0].communicate("\n", timeout=PATIENCE)
        lost, alive = out.splitlines()
        assert lost.startswith(("lost: 1 is silent", "lost: 2 is silent")), err
        assert alive == "near: 1"
