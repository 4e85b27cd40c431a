"""Our ends of beside_perftest.py: one line of JSON in, one line out.

    python -m benchmarks.p2p.verbs_side far LISTEN
    python -m benchmarks.p2p.verbs_side near ADDRESS

All messages go to and from the same places, as perftest's do.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from transport.cli.bench_p2p import Plan, Side, arrived, measure_size, submitter
from transport.cli.bench_side import fill, open_engine, publish_regions

if TYPE_CHECKING:
    from transport import Engine, Peer

_REGION = 32 << 20  # bytes: the largest submission
# Reading a clock is a system call in the guest and may take as long as an 8-byte write.
_GROUP = 20


def _say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def far(listen: str) -> None:
    with open_engine("far", "verbs", listen=(listen,)) as engine:
        regions = publish_regions(engine, ("private",), ("read", "write"), _REGION)
        _say(address=next(it for it in engine.addresses if not it.startswith("unix:")))
        for _ in sys.stdin:
            _say()
        for region in regions:
            region.close()


def _stream(engine: Engine, peer: Peer, row: dict[str, Any]) -> dict[str, Any]:
    plan = Plan(
        row["op"], (row["size"],), row["batch"], "verbs", "private", row["submissions"],
        row["window"],
    )  # fmt: skip
    found = measure_size(Side.open(engine, peer, plan), plan, row["size"])
    right = found.verified and found.path == "rc"
    return {"us": 1e6 / found.messages_per_s, "verified": right}


def _single(engine: Engine, peer: Peer, row: dict[str, Any]) -> dict[str, Any]:
    """The mean for writes, as ib_write_bw gives it; the median for reads, as ib_read_lat does."""
    plan = Plan(row["op"], (row["size"],), 1, "verbs", "private", row["submissions"])
    side = Side.open(engine, peer, plan)
    fill(side.buffer, 1)
    begin = submitter(side, plan, row["size"])
    times: list[float] = []
    clock = time.perf_counter
    start = clock()
    for _ in range(row["submissions"] // _GROUP):
        for _ in range(_GROUP):
            transfer = begin().wait()
        end = clock()
        times.append((end - start) / _GROUP * 1e6)
        start = end
    right = transfer.path == "rc" and arrived(side, plan, 0, row["size"], 1)
    us = sorted(times)[len(times) // 2] if row["op"] == "read" else sum(times) / len(times)
    return {"us": us, "verified": right}


def near(address: str) -> None:
    with open_engine("near", "verbs") as engine:
        peer = engine.connect(address)
        _say()
        kinds = {"stream": _stream, "single": _single}
        for line in sys.stdin:
            row = json.loads(line)
            _say(**kinds[row["kind"]](engine, peer, row))


if __name__ == "__main__":
    {"near": near, "far": far}[sys.argv[1]](sys.argv[2])
