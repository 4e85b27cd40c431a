"""The example of the documentation: a rank is killed, and training goes on as if it were not."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEPS, WIDTH, RANKS = 6, 64, 4
WARM = {"preload": ("torch", "torch._dynamo"), "spares": 1}


@pytest.fixture(scope="module")
def example():
    import elastic_training

    return elastic_training


@pytest.fixture(params=["elastic_training", "elastic_fsdp"])
def kind(request):
    return importlib.import_module(request.param).Job


@pytest.fixture(scope="module")
def expected(example):
    """The losses of one process that has the gradients of all ranks."""
    model, adam = example.begin(WIDTH)
    losses = {}
    for step in range(STEPS):
        adam.zero_grad()
        pairs = [example.batch(WIDTH, step, rank, RANKS) for rank in range(RANKS)]
        each = [torch.nn.functional.mse_loss(model(x), y) for x, y in pairs]
        torch.stack(each).mean().backward()
        adam.step()
        losses[step] = pytest.approx([loss.item() for loss in each])
    return losses


def test_a_rank_is_killed_in_the_middle_of_a_step(example, kind, expected):
    job = example.run(RANKS, STEPS, WIDTH, die=(3, 2), kind=kind, **WARM)
    (recovery,) = job.recoveries
    assert recovery.rank == 2
    assert recovery.moved.startswith("version 3: ")
    assert len(recovery.idle) == RANKS - 1  # the others are the same processes as before
    assert job.losses == expected


def test_two_are_killed_one_between_gradients_and_commit_one_while_that_is_brought_back(
    example, expected
):
    class Job(example.Job):
        def note(self, step, answers):
            super().note(step, answers)
            if step == 2 and not self.recoveries:
                os.kill(self.pids[1], signal.SIGKILL)

        def replace(self, lost):
            if lost == 1:
                os.kill(self.pids[3], signal.SIGKILL)
            return super().replace(lost)

    with example.transport.local(RANKS, host=WARM) as mesh:
        job = Job(mesh, WIDTH)
        job.pids = job.trainers.pid.call().get().values()
        job.train(STEPS)
    assert job.recoveries[-1].rank == 3
    assert job.recoveries[-1].moved.startswith("version 3: ")  # the others had done step 2
    assert job.losses == expected
