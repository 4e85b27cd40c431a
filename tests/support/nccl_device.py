"""A rank of NCCL on a real GPU, in a process of its own: see tests/gpu/test_nccl_on_device.py.

Started with `spawn`; needs a torch that sees a GPU.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

WAIT = 60.0
COUNT = 1 << 20


def _exchange(path: Path) -> Any:
    def exchange(data: bytes | None) -> bytes:
        if data is not None:
            path.with_suffix(".new").write_bytes(data)
            path.with_suffix(".new").rename(path)
            return data
        end = time.monotonic() + WAIT
        while not path.exists():
            assert time.monotonic() < end, "rank 0 has not said anything"
            time.sleep(0.01)
        return path.read_bytes()

    return exchange


def rank_main(rank: int, ranks: int, path: Path, answers: Any) -> None:
    import torch

    from transport.collectives.call import Call, Kind
    from transport.collectives.nccl import NcclCarrier

    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    carrier = NcclCarrier(rank, ranks, 0, _exchange(path), timeout=WAIT)
    own = torch.full((COUNT,), float(rank + 1), device="cuda")
    rows = [torch.zeros(COUNT, device="cuda") for _ in range(ranks)]
    calls = [Call(Kind.ALL_REDUCE, (own,), (own,)), Call(Kind.ALL_GATHER, (own,), tuple(rows))]
    for call in calls:  # the second reads what the first has written, in one stream
        work = carrier.begin([call], None, WAIT)
    assert work.wait(WAIT)
    total = ranks * (ranks + 1) / 2
    good = all(bool((row == total).all()) for row in (own, *rows))
    carrier.close()
    answers.put((rank, good, carrier.library.version_text))
