"""torchft's own lighthouse and managers; the replica that is killed heals through the transport."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def expected(example):
    """The losses of one process that has the gradients of all replicas."""
    model, adam = example.begin()
    losses = {}
    for step in range(example.STEPS):
        adam.zero_grad()
        each = [example.loss_of(model, step, replica) for replica in range(example.REPLICAS)]
        torch.stack(each).mean().backward()
        adam.step()
        losses.update({(step, replica): loss.item() for replica, loss in enumerate(each)})
    return losses


def test_losses_go_on_as_if_nobody_had_died():
    import torchft_training as example

    job = example.run(kill=example.KILLED)
    assert job.starts == example.REPLICAS + 1  # the others went on
    assert job.healed.startswith(f"version {example.AT}: ")
    reference = expected(example)
    assert job.losses.keys() == reference.keys()
    assert [job.losses[key] for key in reference] == pytest.approx(list(reference.values()))
