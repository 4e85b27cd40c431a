"""A mesh over two hosts, which are network namespaces: only TCP leads from one to the other."""

from __future__ import annotations

import pytest
from two_hosts import LINK, ip, job, two_hosts

PATIENCE = 240.0

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


@pytest.fixture
def hosts():
    with two_hosts() as names:
        yield names


def test_tensors_go_between_hosts_by_tcp_and_a_lost_host_loses_its_ranks_alone(hosts):
    near, far = hosts
    with job(PROGRAM, near, far, far) as started:
        said = [started[0].stdout.readline() for _ in range(3)]
        assert said[0].startswith("by tcp 2 "), (said, started[0].stderr.read())
        assert said[1:] == ["crashed: killed by SIGKILL\n", "replaced\n"]
        ip("-n", near, "link", "set", LINK, "down")
        out, err = started[0].communicate("\n", timeout=PATIENCE)
        lost, alive = out.splitlines()
        assert lost.startswith(("lost: 1 is silent", "lost: 2 is silent")), err
        assert alive == "near: 1"
