"""Without a GPU errors say why, and what to do. A process has one driver: each case has its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NOWHERE = {"TRANSPORT_CUDA_LIB": "/nowhere/cuda.so", "TRANSPORT_HIP_LIB": "/nowhere/hip.so"}
NONE = {"GPU_PLATFORM": "none"}
PROGRAM = """
import transport
class Array:
    __cuda_array_interface__ = dict(shape=(4,), typestr="<f4", data=(1 << 20, False), version=3)
with transport.Engine(providers=["shm"]) as engine:
    try:
        {}
    except transport.Unavailable as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("environ", "call", "words"),
    [
        (NOWHERE, 'engine.empty(4, "f4", device="cuda")',
         ["/nowhere/cuda.so", "/nowhere/hip.so", "transport doctor", "leave out device="]),
        (NONE, 'engine.empty(4, "f4", device="cuda")', ["GPU_PLATFORM=none", "unset it"]),
        (NOWHERE, "engine.register(Array())", ["/nowhere/cuda.so", "transport doctor"]),
        (NONE, "engine.register(Array())", ["said to be a GPU's", "GPU_PLATFORM=none"]),
    ],
)  # fmt: skip
def test_there_is_none(environ, call, words):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(call)],
        env=os.environ | environ, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for word in words:
        assert word in done.stdout
