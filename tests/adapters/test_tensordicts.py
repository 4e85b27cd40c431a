"""TensorDicts in calls: their tensors travel as others do, and what they are comes back whole."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("tensordict")

import torch
from tensordict import TensorDict, TensorDictBase, tensorclass

import transport
from transport import Actor, endpoint
from transport.mesh import payload

LARGE = 1 << 20  # elements, far above what is sent within a message


@tensorclass
class Sample:
    tokens: torch.Tensor
    name: str


class Keeper(Actor):
    @endpoint
    def double(self, given: TensorDictBase) -> TensorDictBase:
        assert type(given) is TensorDict
        return given.apply(lambda tensor: tensor * 2)

    @endpoint
    def describe(self, sample: Sample) -> tuple[str, str, int]:
        return type(sample).__name__, sample.name, int(sample.tokens.sum())


def made() -> TensorDict:
    inner = {"large": torch.arange(LARGE, dtype=torch.float32).reshape(4, -1)}
    return TensorDict({"small": torch.ones(4), "inner": inner}, batch_size=[4])


@pytest.fixture(scope="module")
def keeper():
    with transport.local(name="keepers", rank=1) as mesh:
        yield mesh.spawn("keeper", Keeper)


def test_their_large_tensors_are_not_pickled():
    encoded = payload.encode(made(), payload.Context())
    assert len(encoded.data) < 100_000
    assert encoded.held
    assert encoded.release is not None
    encoded.release()


@pytest.mark.parametrize("times", [1, 3])
def test_one_there_and_back(keeper, times):
    for _ in range(times):  # the later ones by rooms
        given = made()
        found = keeper.double.call_one(given).get(60)
        assert type(found) is TensorDict
        assert found.batch_size == given.batch_size
        assert (found == given * 2).all()


def test_a_tensorclass(keeper):
    sample = Sample(tokens=torch.ones(4, LARGE // 4), name="first", batch_size=[4])
    assert keeper.describe.call_one(sample).get(60) == ("Sample", "first", LARGE)
