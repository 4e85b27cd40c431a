"""A training state as a rank has it: parameters and Adam's moments. Imports torch."""

from __future__ import annotations

import torch

LAYERS = 12


def width_for(nbytes, layers=1):
    """So that so many blocks of two linear layers, w to 2w to w, and Adam take so many bytes."""
    return int((nbytes / layers / 48) ** 0.5)


def state_of(nbytes, fill):
    """Some hundred tensors, as a state dict of a model and one of its optimizer."""
    width = width_for(nbytes, LAYERS)
    shapes = {"up": (2 * width, width), "down": (width, 2 * width), "bias": (width,)}
    names = {f"layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in shapes.items()}
    model = {name: torch.full(shape, fill) for name, shape in names.items()}
    moments = {
        number: {
            "step": torch.tensor(1.0),
            "exp_avg": torch.full(shape, fill),
            "exp_avg_sq": torch.full(shape, fill),
        }
        for number, shape in enumerate(names.values())
    }
    groups = [{"lr": 1e-3, "params": list(range(len(names)))}]
    return {"model": model, "optimizer": {"state": moments, "param_groups": groups}}
