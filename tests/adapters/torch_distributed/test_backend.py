"""torch.distributed over this package's backend gives what it gives over gloo, on real torch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch_world

from transport.collectives import table
from transport.collectives.card import Rule

pytestmark = pytest.mark.slow

WORLD = 4
JOBS = (
    *("reductions", "gathers", "scatters", "messages", "objects", "groups", "dtensors"),
    *("ddp", "fsdp2", "checkpoints", "futures"),
)


@pytest.fixture(scope="module")
def found():
    """{backend: {job: what each rank returned}}."""
    jobs = {name: (name,) for name in JOBS}
    return {
        backend: torch_world.run_ranks(WORLD, "torch_backend_jobs", jobs, backend)
        for backend in ("gloo", "transport")
    }


@pytest.mark.parametrize("job", [job for job in JOBS if job not in ("ddp", "fsdp2")])
def test_it_gives_what_gloo_gives(found, job):
    assert found["transport"][job] == found["gloo"][job]


@pytest.mark.parametrize("job", ["ddp", "fsdp2"])
def test_training_has_gloos_losses(found, job):
    """But for the order in which a sum is made. (Adam makes more of it in parameters.)"""
    for (losses, _), (theirs, _) in zip(found["transport"][job], found["gloo"][job], strict=True):
        assert losses == pytest.approx(theirs, rel=1e-6)
        assert losses[-1] < losses[0], "it does not learn"


def test_training_has_gloos_losses_bit_for_bit_where_gloo_adds(found, tmp_path, monkeypatch):
    table.write(tmp_path / "gloo", [Rule("*", "cpu", 0, "gloo")])
    monkeypatch.setenv("TRANSPORT_COLLECTIVES_TABLE", str(tmp_path / "gloo"))
    jobs = {name: (name,) for name in ("ddp", "fsdp2")}
    ours = torch_world.run_ranks(WORLD, "torch_backend_jobs", jobs, "transport")
    assert ours == {name: found["gloo"][name] for name in jobs}


def test_ranks_that_meet_at_an_address_of_the_network(monkeypatch):
    """As on several hosts: MASTER_ADDR is no loopback address, and engines listen beside it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of a datagram socket: sends nothing
        except OSError:
            pytest.skip("network: this host has no address but loopback's")
        own = probe.getsockname()[0]
    monkeypatch.setenv("MASTER_ADDR", own)
    jobs = {"gathered": ("objects",), "listening": ("listening",)}
    found = torch_world.run_ranks(2, "torch_backend_jobs", jobs, "transport")
    assert found["gathered"][0][0] == [{"rank": 0, "text": ""}, {"rank": 1, "text": "x"}]
    assert any(each.startswith(f"{own}:") for each in found["listening"][0])


def lines_of_the_others(*arguments):
    script = Path(torch_world.__file__).with_name("torch_backend_loss.py")
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.split() for line in sorted(done.stdout.splitlines())]


def test_a_killed_rank_fails_the_others():
    """Neither a call that waits nor a future hangs, and the error says who."""
    lines = lines_of_the_others()
    assert [line[:4] for line in lines] == [
        ["0", "RankLost", "RuntimeError", "True"],
        ["2", "RankLost", "RuntimeError", "True"],
    ]
    assert all(float(line[4]) < 5.0 for line in lines), lines


def test_a_rank_that_is_killed_in_ddps_backward_pass_fails_the_others():
    assert lines_of_the_others("ddp") == [["0", "True"], ["2", "True"]]
