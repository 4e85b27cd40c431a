"""The tcp provider beside iperf3 and bare sockets, which take turns with as many streams.

    python -m benchmarks.p2p.tcp_limit [--address 127.0.0.1] [--far "ip netns exec b"] [--streams 4]
        [--buffers hot,cold] [--block 1MiB] [--seconds 2] [--rounds 7] [--least 0.95]
        [--iperf3-only] [--json FILE]

Everything goes one way: this end writes, `--far` starts the other end, which is reached by
`--address`. All count the bytes that have arrived. tcp_between_hosts.sh makes two hosts for it.

hot: all move the same buffers again and again, as iperf3 does: one of `--block` bytes for each
stream, at either end. cold: 64 MiB, which the caches of a core do not hold. iperf3 has no such
buffers (1 MiB is its most): its rate is shown, and decides nothing.

What counts is the median of the ratios of each round, to whichever other that is least for. Exit
status 1 when one is less than asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.baselines.socket_pair import build
from transport import Blocks, Engine
from transport.cli import facts
from transport.cli.sizes import parse_sizes
from transport.config import Settings
from transport.testing.processes import PeerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

OURS, IPERF3, BARE = "transport", "iperf3", "bare sockets"
PART = 16 << 20  # bytes of one transfer; so many of them are under way that the path is never idle,
PARTS = 16  # though a stream that lost packets holds up one of them for some time
COLD = 64 << 20
_TRIES = 3  # its server is busy for a moment after each turn
_ARRIVED = """
senders = [it for it in servant.engine.peers if it.incarnation == sender]
result = sum(it.counters()["served"]["bytes"] for it in senders)
"""


@dataclass(frozen=True)
class Route:
    """How the other end is started and reached, and over how many connections."""

    far: tuple[str, ...]
    address: str
    streams: int


@dataclass(frozen=True)
class Buffers:
    """What is moved: so many bytes at either end, in blocks, all streams together."""

    name: str
    size: int
    block: int


class Ours:
    """An engine there, one here for each turn, and writes that follow each other without a gap.

    New connections for each turn, as the others have: on a path with loss an old one is slower.
    """

    def __init__(self, route: Route, buffers: Buffers) -> None:
        self._stack = contextlib.ExitStack()
        settings = Settings.from_env(tcp_streams=route.streams)
        self._common: dict[str, Any] = {
            "providers": ("tcp",),
            "secret": secrets.token_bytes(32),
            "settings": settings,
        }
        host = f"[{route.address}]" if ":" in route.address else route.address
        self._there = self._stack.enter_context(PeerProcess(*route.far))
        self._there.call("open", **self._common, listen=f"{host}:0")
        self._remote = self._there.call("make", "x", buffers.size)
        self._buffer = bytearray(secrets.token_bytes(buffers.size))
        self._parts = [_part(i, buffers) for i in range(PARTS)]
        self.how = ""

    def rate(self, seconds: float) -> float:
        with Engine(**self._common) as self._engine:
            self._engine.read(self._remote[:1], bytearray(1)).wait(60)  # connected
            rate = self._rate(seconds)
            lines = self._engine.peers[0].explain()
            self.how = "; ".join(line for line in lines if "streams" in line)
        return rate

    def _rate(self, seconds: float) -> float:
        before, begin = self._arrived(), time.perf_counter()
        count = 0
        flying = [self._write(i) for i in range(PARTS)]
        while (left := seconds + begin - time.perf_counter()) > 0:
            with contextlib.suppress(TimeoutError):
                flying[count % PARTS].wait(left)
                flying[count % PARTS] = self._write(count % PARTS)
                count += 1
        rate = (self._arrived() - before) / (time.perf_counter() - begin)
        for transfer in flying:
            transfer.wait(60)
        return rate

    def _arrived(self) -> int:
        """Bytes of whole requests that the other end has from this engine."""
        return int(self._there.call("run", _ARRIVED, sender=self._engine.incarnation))

    def _write(self, part: int) -> Any:
        offsets, block = self._parts[part]
        source = Blocks(self._buffer, offsets, block)
        return self._engine.write(source, Blocks(self._remote, offsets, block))

    def check(self) -> None:
        """Raises SystemExit unless all bytes arrived."""
        if self._there.call("content", "x") != bytes(self._buffer):
            raise SystemExit("wrong bytes arrived")

    def close(self) -> None:
        self._stack.close()


def _part(part: int, buffers: Buffers) -> tuple[list[int], int]:
    """Offsets and length of the blocks of one transfer."""
    first = part * PART
    return [at % buffers.size for at in range(first, first + PART, buffers.block)], buffers.block


@contextlib.contextmanager
def bare(route: Route, buffers: Buffers) -> Generator[Callable[[float], float]]:
    """One thread for each socket at either end."""
    program = str(build("stream_pair"))
    command = [*route.far, program, route.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()

        def rate(seconds: float) -> float:
            many = (str(route.streams), str(seconds), str(buffers.size))
            command = [program, route.address, port, *many]
            return float(subprocess.run(command, check=True, capture_output=True).stdout)

        try:
            yield rate
        finally:
            server.kill()


@contextlib.contextmanager
def iperf3(route: Route, block: int) -> Generator[Callable[[float], float]]:
    """What its server has received."""
    where = (route.address, "-p", "5201")
    with subprocess.Popen(
        [*route.far, "iperf3", "-s", "-B", *where], stdout=subprocess.DEVNULL
    ) as server:
        time.sleep(0.5)  # it says nothing when it listens

        def rate(seconds: float) -> float:
            how = ("-P", str(route.streams), "-l", str(block), "-t", str(seconds), "--json")
            found: dict[str, Any] = {}
            for _ in range(_TRIES):
                done = subprocess.run(["iperf3", "-c", *where, *how], stdout=subprocess.PIPE)
                found = json.loads(done.stdout)
                if "sum_received" in found.get("end", {}):
                    return float(found["end"]["sum_received"]["bits_per_second"]) / 8
                time.sleep(1)
            raise SystemExit(f"iperf3 says: {found.get('error')}")

        try:
            yield rate
        finally:
            server.kill()


@dataclass
class Result:
    """Bytes a second of each side in each round, and how ours went."""

    buffers: Buffers
    rates: dict[str, list[float]]
    how: str
    ratios: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        ours = self.rates[OURS]
        self.ratios = {
            name: statistics.median(mine / theirs for mine, theirs in zip(ours, rates))
            for name, rates in self.rates.items()
            if name != OURS
        }

    @property
    def found(self) -> float:
        """The ratio that counts."""
        deciding = [
            r for name, r in self.ratios.items() if self.buffers.name == "hot" or name == BARE
        ]
        return min(deciding)

    def line(self, address: str, least: float) -> str:
        verdict = "met" if self.found >= least else "MISSED"
        rates = [f"{OURS} {statistics.median(self.rates[OURS]) / 1e9:.3f} GB/s"]
        for name, ratio in self.ratios.items():
            rates.append(f"{name} {statistics.median(self.rates[name]) / 1e9:.3f} ({ratio:.2f})")
        return (
            f"tcp to {address}, {self.buffers.name}: {self.found:.2f} (>= {least}) {verdict}; "
            f"{', '.join(rates)}; {self.how}"
        )


def measure(arguments: argparse.Namespace, buffers: Buffers) -> Result:
    route = Route(tuple(shlex.split(arguments.far)), arguments.address, arguments.streams)
    with contextlib.ExitStack() as stack:
        ours = Ours(route, buffers)
        stack.callback(ours.close)
        sides: dict[str, Callable[[float], float]] = {OURS: ours.rate}
        if shutil.which("iperf3"):
            sides[IPERF3] = stack.enter_context(iperf3(route, arguments.block))
        if not arguments.iperf3_only:
            sides[BARE] = stack.enter_context(bare(route, buffers))
        rates: dict[str, list[float]] = {name: [] for name in sides}
        names = list(sides)
        for turn in range(arguments.rounds):
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                rates[name].append(sides[name](arguments.seconds))
        ours.check()
        return Result(buffers, rates, ours.how)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    option = parser.add_argument
    option("--address", default="127.0.0.1", help="of the other end")
    option("--far", default="", help="command that starts what runs there")
    option("--streams", type=int, default=4)
    option("--buffers", default="hot,cold", help="hot, cold or both")
    option("--block", type=lambda text: parse_sizes(text)[0], default=1 << 20, metavar="SIZE",
           help="of a send of iperf3, and of each stream's hot buffer (1MiB)")  # fmt: skip
    option("--seconds", type=int, default=2, help="of a turn")
    option("--rounds", type=int, default=7)
    option("--least", type=float, default=0.95)
    option("--iperf3-only", action="store_true", help="no bare sockets; with --buffers hot")
    option("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.iperf3_only and (arguments.buffers != "hot" or not shutil.which("iperf3")):
        parser.error("--iperf3-only needs iperf3, and --buffers hot")
    return arguments


def main() -> None:
    arguments = parse()
    hot = Buffers("hot", arguments.streams * arguments.block, arguments.block)
    known = {"hot": hot, "cold": Buffers("cold", COLD, PART)}
    results = []
    for name in arguments.buffers.split(","):
        results.append(measure(arguments, known[name]))
        print(results[-1].line(arguments.address, arguments.least), flush=True)
    if arguments.json:
        rows = {it.buffers.name: {"ratios": it.ratios, "bytes_per_s": it.rates} for it in results}
        result = {"schema": 2, "host": facts.host(), "streams": arguments.streams, **rows}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(any(it.found < arguments.least for it in results))


if __name__ == "__main__":
    main()
