"""torchft's CheckpointTransports and ours: four processes, of which the last one heals.

    python -m benchmarks.recovery.transports [--mb 90] [--rounds 7]

A time is that of the healing process, from when all begin until it has the state; the ways take
turns. `in place` receives into tensors that are there. JSON on stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import statistics
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.recovery.state import state_of

RANKS, STEP = 4, 7
MINUTE = timedelta(seconds=60)
WAYS = ("http", "http, 4 chunks", "pg", "pg, in place", "ours", "ours, in place", "ours, shared")
WAYS += ("ours, shared, in place",)


class Meeting:
    """All processes begin at the same time, and tell each other things."""

    def __init__(self, port, rank):
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        self.rank = rank
        self._count = 0

    def wait(self):
        self._count += 1
        if self.store.add(f"arrived/{self._count}", 1) == RANKS:
            self.store.set(f"all/{self._count}", "1")
        self.store.wait([f"all/{self._count}"], MINUTE)


def transport_for(way, engine, group, state):
    """The transport; for sharing, the group tells it who the others are."""
    from torchft.checkpointing.http_transport import HTTPTransport
    from torchft.checkpointing.pg_transport import PGTransport

    from transport.adapters.torchft import PeerTransport

    into = {"state_dict": lambda: {"user": state}} if way.endswith("in place") else {}
    if way.startswith("http"):
        return HTTPTransport(MINUTE, 4 if "chunks" in way else 0), group
    if way.startswith("pg"):
        return PGTransport(group, MINUTE, torch.device("cpu"), **into), group
    made = PeerTransport(engine, **into)
    shared = made.share(group, lambda: state, lambda: STEP if engine.name != "3" else 1)
    return made, shared if "shared" in way else group


def one(way, meeting, state, engine, number):
    """One healing; seconds, at the process that heals."""
    from torchft.process_group import ProcessGroupGloo

    rank, store = meeting.rank, meeting.store
    made, group = transport_for(way, engine, ProcessGroupGloo(MINUTE), state)
    group.configure(f"127.0.0.1:{store.port}/group/{number}", str(rank), rank, RANKS)
    if rank == 0:
        store.set(f"metadata/{number}", made.metadata())
    metadata = store.get(f"metadata/{number}").decode()
    meeting.wait()
    begun = time.perf_counter()
    if rank == 0:
        made.send_checkpoint([3], STEP, {"user": state}, MINUTE)
    if rank == 3:
        got = made.recv_checkpoint(0, metadata, STEP, MINUTE)
        took = time.perf_counter() - begun
        assert got["user"]["model"]["layers.0.up"].mean() == 1
    meeting.wait()
    made.disallow_checkpoint()
    made.shutdown()
    group.shutdown()
    if rank == 3:
        for tensor in state["model"].values():
            tensor.zero_()
        return took
    return None


def child(arguments):
    from transport import Engine

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    meeting = Meeting(arguments.port, arguments.rank)
    state = state_of(arguments.mb * 1_000_000, 0.0 if arguments.rank == 3 else 1.0)
    with Engine(name=str(arguments.rank)) as engine:
        for number in range(arguments.rounds * len(WAYS)):
            way = WAYS[number % len(WAYS)]
            took = one(way, meeting, state, engine, number)
            if took is not None:
                print(json.dumps({"way": way, "seconds": took}), flush=True)


def measure(mb=90, rounds=7):
    """{way: {"median": s, "least": s, "seconds": [...]}}"""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [
        sys.executable,
        "-m",
        "benchmarks.recovery.transports",
        f"--mb={mb}",
        f"--rounds={rounds}",
    ]
    command += [f"--port={store.port}"]
    with contextlib.ExitStack() as stack:
        children = []
        for rank in range(RANKS):
            out = subprocess.PIPE if rank == 3 else subprocess.DEVNULL
            process = subprocess.Popen([*command, f"--rank={rank}"], stdout=out, text=True)
            stack.callback(process.kill)
            children.append(process)
        out, _ = children[3].communicate(timeout=600)
        for process in children:
            process.wait(30)
    found = {way: [] for way in WAYS}
    for line in out.splitlines():
        row = json.loads(line)
        found[row["way"]].append(row["seconds"])
    return {
        way: {"median": statistics.median(it), "least": min(it), "seconds": it}
        for way, it in found.items()
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=90)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--port", type=int)
    parser.add_argument("--rank", type=int)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        child(arguments)
    else:
        print(json.dumps(measure(arguments.mb, arguments.rounds), indent=1))


if __name__ == "__main__":
    main()
