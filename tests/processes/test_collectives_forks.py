"""Children that get a communicator by fork: they are told so, and the parent's goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

RANK = """
import gc, os, sys
import torch
from transport import Communicator, InvalidUse

rank = int(sys.argv[1])
comm = Communicator.join("forks", rank, 2, sys.argv[2], deadline=60, operation_deadline=30)
comm.all_reduce(torch.ones(4)).wait()
coming = comm.recv(torch.zeros(1), 1 - rank)
child = os.fork()
if child == 0:
    for use in (coming.wait, comm.barrier, comm.shrink, comm.grow):
        try:
            use()
        except InvalidUse as error:
            assert "belongs to process" in str(error), error
        else:
            raise AssertionError(use)
    comm.close()
    comm, coming = None, None
    gc.collect()
    alone = Communicator.join("another", 0, 1)
    assert alone.all_reduce(torch.ones(4)).wait()[0] == 1
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
comm.send(torch.ones(1), 1 - rank).wait()
assert coming.wait()[0] == 1
assert comm.all_reduce(torch.ones(4)).wait()[0] == 2
comm.barrier().wait()
"""


@pytest.mark.parametrize("carrier", ["gloo", "onesided"])
def test_a_child_is_refused_and_exits_and_the_parent_goes_on(carrier, tmp_path):
    rule = {"kind": "*", "device": "cpu", "least": 0, "carrier": carrier}
    (tmp_path / "table").write_text(json.dumps({"schema": 1, "rules": [rule]}))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TRANSPORT_COLLECTIVES_TABLE": str(tmp_path / "table"),
    }
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), f"unix:{tmp_path}/door"],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        told = [rank.communicate(timeout=90)[1][-3000:] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], told
    finally:
        for rank in ranks:
            rank.kill()
