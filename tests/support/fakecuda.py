"""Processes whose GPU driver is a double (native/fakes/fakecuda, fakehip).

A process has one driver: for the double in this one see gpu_double.py. May import the standard
library only.
"""

from __future__ import annotations

import os
from pathlib import Path


def library(platform: str = "cuda") -> str:
    """The file of the double: "cuda" or "rocm"."""
    name = "fakecuda.so" if platform == "cuda" else "fakehip.so"
    return str(Path(os.environ["TN_FAKES"]) / name)


def environment(platform: str = "cuda", **knobs: int | str) -> dict[str, str]:
    """Variables for a process whose driver is to be the double, with these knobs."""
    path = library(platform)
    own = {"FAKEGPU": " ".join(f"{name}={value}" for name, value in knobs.items())}
    if platform == "cuda":
        return own | {"TRANSPORT_CUDA_LIB": path}
    return own | {"TRANSPORT_HIP_LIB": path, "TRANSPORT_HSA_LIB": path}
