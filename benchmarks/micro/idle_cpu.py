"""What idle engines cost: one engine here, N in a second process, all connected, nothing to do.

python -m benchmarks.micro.idle_cpu [--peers N] [--seconds S] [--json]
"""

from __future__ import annotations

import argparse
import json
import secrets
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import transport
from transport.cli import child

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


@dataclass(frozen=True)
class IdleCpu:
    """Shares of one core over `seconds`, by CLOCK_PROCESS_CPUTIME_ID of each process."""

    peers: int
    seconds: float
    here: float  # one engine with `peers` peers
    there: float  # `peers` engines with one peer each


def _others(pipe: Connection, secret: bytes, address: str, count: int) -> None:
    engines = [transport.Engine(name=f"idle-{n}", secret=secret) for n in range(count)]
    for engine in engines:
        engine.connect(address)
    child.serve(pipe, {"cpu": time.process_time})
    for engine in engines:
        engine.close()


def measure(peers: int = 8, seconds: float = 10.0) -> IdleCpu:
    secret = secrets.token_bytes(32)
    with (
        transport.Engine(name="idle", secret=secret) as engine,
        child.Child(_others, secret, engine.addresses[0], peers) as others,
    ):
        others.ask("cpu")
        time.sleep(1.0)  # connecting is over
        here, there = time.process_time(), others.ask("cpu")
        begin = time.perf_counter()
        time.sleep(seconds)
        spent = time.perf_counter() - begin
        here, there = time.process_time() - here, others.ask("cpu") - there
    return IdleCpu(peers, spent, here / spent, there / spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.peers, arguments.seconds)
    if arguments.json:
        print(json.dumps(asdict(found)))
    else:
        print(f"one engine with {found.peers} peers: {found.here:.3%} of a core")
        print(f"{found.peers} engines with one peer:  {found.there:.3%} of a core")


if __name__ == "__main__":
    main()
