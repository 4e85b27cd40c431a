"""Ranks on two hosts, which are network namespaces: only TCP leads from one to the other."""

from __future__ import annotations

import pytest
from two_hosts import LINK, ip, job, two_hosts

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

PATIENCE = 240.0

# In every process. The sizes: in a message, read from where it lies, and in two chunks of a
# broadcast down a tree.
PROGRAM = """
import os, sys, time, torch, collective_actors as actors
from transport import Communicator
from transport.errors import RankLost

torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
at = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
for carrier in ("onesided", "gloo"):
    with actors.carried_by(carrier):
        comm = Communicator.join(carrier, rank, size, at, deadline=120, operation_deadline=120)
        checks = actors.Checks(comm)
        for count in (0, 5, 40_000):
            checks.moves(torch.float32, count)
        large = actors.given(0, 1_500_001, torch.float32)
        got = large if rank == 0 else torch.empty_like(large)
        comm.broadcast(got, 0).wait()
        assert torch.equal(got, large)
        checks.reductions(torch.float32, 40_001)
        for _ in range(20):
            comm.barrier().wait()
        if carrier == "onesided":
            comm.close()
print("right", flush=True)
sys.stdin.readline()
begun = time.monotonic()
try:
    comm.all_reduce(torch.ones(8)).wait()
except RankLost as error:
    print("lost:", *error.ranks, time.monotonic() - begun < 60, flush=True)
"""


@pytest.fixture
def hosts():
    with two_hosts() as names:
        yield names


def test_every_kind_between_hosts_and_a_host_that_is_cut_off(hosts):
    near, far = hosts
    with job(PROGRAM, near, far, near, far) as started:
        for each in started:
            assert each.stdout.readline() == "right\n", each.stderr.read()
        ip("-n", near, "link", "set", LINK, "down")
        for each in started:
            each.stdin.write("\n")
            each.stdin.flush()
        for rank, each in enumerate(started):
            out, err = each.communicate(timeout=PATIENCE)
            assert out.startswith("lost: "), err
            lost = set(map(int, out.split()[1:-1]))
            assert lost
            assert lost <= ({1, 3} if rank in (0, 2) else {0, 2})
            assert out.endswith("True\n")
