"""Tensors on a GPU in the values of calls, encoded and decoded in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transport.config import Settings
from transport.memory.gpu_array import GpuArray
from transport.mesh import tensors
from transport.mesh.payload import Context, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_double import GpuDouble

VALUES = np.arange(30 * 40, dtype=np.float32).reshape(30, 40)


@pytest.fixture
def here(gpu: GpuDouble) -> Iterator[tensors.Tensors]:
    tensors.close()
    tensors.configure(settings=Settings.from_env(**gpu.settings()))
    yield tensors.here()
    tensors.close()
    tensors.configure()


def on_gpu(here: tensors.Tensors, values: Any, device: str) -> GpuArray:
    array = here.engine.empty(values.shape, str(values.dtype), device=device)
    with here.lend([values]) as grant:
        here.engine.read(grant.handles[0], array).wait(30)
    return array


def on_host(here: tensors.Tensors, array: GpuArray) -> Any:
    values = np.empty(array.shape, array.dtype)
    with here.lend([array]) as grant:
        here.engine.read(grant.handles[0], values).wait(30)
    return values


@pytest.mark.parametrize("copy", [False, True])
def test_an_array_arrives_on_the_gpu(here: tensors.Tensors, gpu: GpuDouble, copy: bool):
    array = on_gpu(here, VALUES, gpu.kind)
    payload = encode({"array": array, "again": array}, Context(copy=copy))
    made = decode(payload, Context())
    payload.release()
    assert made["again"] is made["array"]
    assert isinstance(made["array"], GpuArray)
    assert made["array"].device == array.device
    assert np.array_equal(on_host(here, made["array"]), VALUES)


def test_an_array_that_stays(here: tensors.Tensors, gpu: GpuDouble):
    payload = encode(on_gpu(here, VALUES, gpu.kind), Context(keep="remote"))
    kept = decode(payload, Context())
    assert (kept.shape, kept.device) == (VALUES.shape, f"{gpu.kind}:0")
    assert np.array_equal(on_host(here, kept.fetch()), VALUES)
    part = np.empty((2, 40), np.float32)
    assert np.array_equal(kept[3:5].fetch(into=part), VALUES[3:5])
