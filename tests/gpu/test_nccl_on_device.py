"""NCCL itself on one GPU: with one rank, and with two where it lets two share a GPU (2.30.3 and
newer, NCCL_MULTI_RANK_GPU_ENABLE). Run by tests/gpu/run_on_gpu.sh; not yet run on hardware.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any

import nccl_device
import pytest
from capabilities import require

if os.environ.get("TN_GPU_DOUBLE") != "none":
    require("gpu", "only tests/gpu/run_on_gpu.sh runs these, in a process of their own")

pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

if TYPE_CHECKING:
    from pathlib import Path

SHARES = 23003  # the version that lets ranks share a GPU


def _version() -> int:
    from transport.collectives.nccl import library
    from transport.config import Settings

    return library(Settings.from_env()).version


@pytest.mark.parametrize("ranks", [1, 2])
def test_all_reduce_and_all_gather(
    ranks: int, tmp_path: Path, record_property: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = _version()
    record_property("nccl", version)
    if ranks > 1 and version < SHARES:
        pytest.skip(f"multigpu: NCCL {version} lets no two ranks share a GPU")
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    orders = [(rank, ranks, tmp_path / "id", answers) for rank in range(ranks)]
    main = nccl_device.rank_main
    processes = [context.Process(target=main, args=order, daemon=True) for order in orders]
    for process in processes:
        process.start()
    found = sorted(answers.get(timeout=nccl_device.WAIT * 2) for _ in processes)
    for process in processes:
        process.join(nccl_device.WAIT)
    assert [good for _, good, _ in found] == [True] * ranks
