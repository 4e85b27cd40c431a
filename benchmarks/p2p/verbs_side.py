"""Our ends of beside_perftest.py: one line of JSON in, one line out.

    python -m benchmarks.p2p.verbs_side far LISTEN
    python -m benchmarks.p2p.verbs_side near ADDRESS

All messages go to and from the same places, as perftest's do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import statistics
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.p2p.small_in_c import SmallInC
from transport import Read, Write
from transport.cli.bench_p2p import Plan, Side, arrived, measure_size
from transport.cli.bench_side import SOURCE_SEED, fill, open_engine, publish_regions

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport import Engine, Peer
    from transport.engine.prepared import Prepared

_REGION = 32 << 20  # bytes: the largest submission
# Reading a clock is a system call in the guest and may take longer than an 8-byte write.
_GROUP = 100


def _say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def far(listen: str) -> None:
    with open_engine("far", "verbs", listen=(listen,)) as engine:
        regions = publish_regions(engine, ("private",), ("read", "write"), _REGION)
        pong = _Pong(engine, "far")
        _say(address=next(it for it in engine.addresses if not it.startswith("unix:")))
        for line in sys.stdin:
            hit = pong.ready(engine.peers[0], "near")
            _say()
            row = json.loads(line)
            play = pong.play_in_c if row["driver"] == "c" else pong.play
            play(hit, row["submissions"], serves=False)
            _say()
        for region in (*regions, pong.region):
            region.close()


class _Pong:
    """One end of a ping-pong: a number goes there and back, and both ends look for it in memory."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.ball = np.zeros(1, np.int64)
        self.hole = np.zeros(1, np.int64)
        self.region = engine.register(self.hole)
        engine.publish(f"pong/{name}", self.region)

    def ready(self, peer: Peer, name: str) -> Prepared:
        self.hole[0] = 0
        there = peer.lookup(f"pong/{name}").bytes()
        return self.engine.prepare(Write(self.ball, there), provider="verbs")

    def play(self, hit: Prepared, count: int, *, serves: bool) -> float:
        """Microseconds of half a round, the median, as ib_write_lat gives it."""
        run, ball, hole = hit.run, memoryview(self.ball), memoryview(self.hole)

        def turn(number: int) -> None:
            ball[0] = number + 1
            if serves:
                run()
            while hole[0] != number + 1:
                pass
            if not serves:
                run()

        return statistics.median(_groups(count, turn)) / 2

    def play_in_c(self, hit: Prepared, count: int, *, serves: bool) -> float:
        ends = self.ball.ctypes.data, self.hole.ctypes.data
        return statistics.median(_small().pingpong(hit, count, *ends, serves=serves)) / 2e3


@functools.cache
def _small() -> SmallInC:
    return SmallInC()


def _side(engine: Engine, peer: Peer, row: dict[str, Any]) -> tuple[Side, Plan]:
    """Buffers of one message: all messages are of the same bytes, as perftest's are."""
    plan = Plan(
        row["op"], (row["size"],), row["batch"], "verbs", "private", row["submissions"],
        row["window"],
    )  # fmt: skip
    one = dataclasses.replace(plan, batch=1)
    return Side.open(engine, peer, one), plan


def _stream(engine: Engine, peer: Peer, row: dict[str, Any]) -> dict[str, Any]:
    """Submissions as `transport bench p2p --window` makes them."""
    side, plan = _side(engine, peer, row)
    found = measure_size(side, plan, row["size"])
    right = found.verified and found.path == "rc"
    return {"us": 1e6 / found.messages_per_s, "verified": right}


def _prepared_stream(engine: Engine, peer: Peer, row: dict[str, Any]) -> dict[str, Any]:
    """The same with transfers that were prepared, which are started in turn."""
    side, plan = _side(engine, peer, row)
    request, seed = _request(side, row), _seed(side, row)
    with contextlib.ExitStack() as stack:
        ready = [
            stack.enter_context(engine.prepare([request] * plan.batch, provider="verbs"))
            for _ in range(plan.window)
        ]
        turns = deque(ready)
        last = ready[0].run()
        begin = time.perf_counter()
        for _ in range(row["submissions"]):
            last = turns[0].wait().start()
            turns.rotate(-1)
        for prepared in turns:
            prepared.wait()
        us = (time.perf_counter() - begin) / row["submissions"] / plan.batch * 1e6
        path = last.path
    return {"us": us, "verified": path == "rc" and arrived(side, plan, 0, row["size"], seed)}


def _request(side: Side, row: dict[str, Any]) -> Read | Write:
    there, here = side.remote.bytes(0, row["size"]), side.buffer[: row["size"]]
    return Read(there, here) if row["op"] == "read" else Write(here, there)


def _seed(side: Side, row: dict[str, Any]) -> int:
    """What the receiving end holds in the end."""
    fill(side.buffer, 1 + SOURCE_SEED)
    return SOURCE_SEED if row["op"] == "read" else 1 + SOURCE_SEED


def _groups(count: int, work: Callable[[int], object]) -> list[float]:
    """Microseconds of one piece of work, measured in groups."""
    times: list[float] = []
    clock = time.perf_counter
    start = clock()
    for group in range(count // _GROUP):
        for turn in range(_GROUP):
            work(group * _GROUP + turn)
        end = clock()
        times.append((end - start) / _GROUP * 1e6)
        start = end
    return times


def _single(engine: Engine, peer: Peer, row: dict[str, Any]) -> dict[str, Any]:
    """The mean for writes, as ib_write_bw gives it; the median for reads, as ib_read_lat does."""
    side, plan = _side(engine, peer, row)
    seed = _seed(side, row)
    with engine.prepare(_request(side, row), provider="verbs") as prepared:
        run = prepared.run
        if row["driver"] == "c":
            times = [ns / 1e3 for ns in _small().single(prepared, row["submissions"])]
        else:
            times = _groups(row["submissions"], lambda _: run())
        path = prepared.path
    us = statistics.median(times) if row["op"] == "read" else statistics.mean(times)
    return {"us": us, "verified": path == "rc" and arrived(side, plan, 0, row["size"], seed)}


def near(address: str) -> None:
    with open_engine("near", "verbs") as engine:
        peer = engine.connect(address)
        pong = _Pong(engine, "near")
        _say()
        for line in sys.stdin:
            row = json.loads(line)
            if row["kind"] == "pingpong":
                hit = pong.ready(peer, "far")
                play = pong.play_in_c if row["driver"] == "c" else pong.play
                us = play(hit, row["submissions"], serves=True)
                _say(us=us, verified=hit.path == "rc")
            else:
                _say(**_KINDS[row["kind"]](engine, peer, row))
        pong.region.close()


_KINDS = {"stream": _stream, "prepared": _prepared_stream, "single": _single}


if __name__ == "__main__":
    {"near": near, "far": far}[sys.argv[1]](sys.argv[2])
