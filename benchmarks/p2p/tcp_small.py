"""A small read and write over tcp on loopback, beside two bare sockets in C, in turn.

    python -m benchmarks.p2p.tcp_small [--size 4096] [--rounds 2000]

"prepared" is one run of a prepared transfer, "transport" a transfer made anew, both from Python.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.baselines.socket_pair import SocketPair
from benchmarks.p2p.pairs import OURS, Times, alternate, ends
from transport import Read, Write

if TYPE_CHECKING:
    from transport import Prepared


def once(prepared: Prepared) -> int:
    """Nanoseconds of one run."""
    begin = time.perf_counter_ns()
    prepared.run()
    return time.perf_counter_ns() - begin


def measure(op: str, size: int, rounds: int) -> Times:
    with ends("tcp", "private", size) as pair, SocketPair(size, op) as bare:
        what = Read(pair.remote, pair.buffer) if op == "read" else Write(pair.buffer, pair.remote)
        with pair.engine.prepare([what]) as prepared:
            sides = {
                OURS: lambda: pair.once(op),
                "prepared": lambda: once(prepared),
                "bare sockets": bare.once,
            }
            return alternate(sides, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=2000)
    arguments = parser.parse_args()
    for op in ("read", "write"):
        times = measure(op, arguments.size, arguments.rounds)
        shown = {name: statistics.median(taken) / 1e3 for name, taken in times.items()}
        print(op, ", ".join(f"{name} {median:.1f} us" for name, median in shown.items()))


if __name__ == "__main__":
    main()
