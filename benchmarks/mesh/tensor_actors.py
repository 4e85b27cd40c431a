"""The actors of benchmarks.mesh.tensors: the same methods for ours and for Ray's."""

from __future__ import annotations

import torch

import transport


def ends(tensor: torch.Tensor) -> float:
    return float(tensor[0] + tensor[-1])


def make(self, size):
    torch.set_num_threads(1)
    self.value = torch.full((size // 4,), 1.5)


def take(self, value):
    return ends(value)


def give(self):
    return self.value


def same(self, value, expected):
    return bool((value == expected).all())


class Taker(transport.Actor):
    __init__ = make
    take = transport.endpoint(take)
    give = transport.endpoint(give)
    same = transport.endpoint(same)


class RayTaker:
    def __init__(self):
        torch.set_num_threads(1)

    take = take
    same = same
