"""The two actors of each way. Ray's workers import this by name, from this folder."""

from __future__ import annotations

import os

import ray
import torch

import transport.adapters.ray as adapter

adapter.register()


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Side:
    def __init__(self):
        torch.set_num_threads(1)
        self.value = None

    def pid(self):
        return os.getpid()

    def make(self, count, size, seed):
        made = [torch.full((size // 4,), float(seed + i)) for i in range(count)]
        self.value = made if count > 1 else made[0]

    def give(self):
        return self.value

    def take(self, value):
        return True

    def wrong(self, value, count, seed):
        """How many of the tensors are not what they should be."""
        tensors = value if isinstance(value, list) else [value]
        bad = [i for i, tensor in enumerate(tensors) if not bool((tensor == float(seed + i)).all())]
        return len(bad) + abs(len(tensors) - count)
