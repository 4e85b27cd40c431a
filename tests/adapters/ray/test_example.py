"""The example of the documentation does what it says, on the cluster of these tests."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]


def test_a_trainer_and_generators_with_another_sharding(capsys):
    import ray_parameter_sync as example

    moved = example.main(steps=3)
    # Each generator reads its half of both tensors, of the trainer's float32, and nothing else.
    assert moved == [example.HIDDEN * example.INNER * 4] * 2
    assert capsys.readouterr().out.count("to 2 generators") == 3
