"""The tcp provider beside iperf3 and bare sockets, which take turns with as many streams.

    python -m benchmarks.p2p.tcp_limit [--address 127.0.0.1] [--far "ip netns exec b"] [--streams 4]
        [--seconds 2] [--rounds 7] [--least 0.95] [--json FILE]

Everything goes one way: this end writes, `--far` starts the other end, which is reached by
`--address`. All count the bytes that have arrived. tcp_between_hosts.sh makes two hosts for it.
Exit status 1 when the median of the ratios is less than asked for.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.baselines.socket_pair import build
from transport import Engine
from transport.cli import facts
from transport.config import Settings
from transport.testing.processes import PeerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

OURS = "transport"
PART = 16 << 20  # bytes of one transfer; so many of them are under way that the path is never idle
PARTS = 4
SIZE = PART * PARTS


class Ours:
    """An engine there, one here for each turn, and writes that follow each other without a gap.

    New connections for each turn, as the others have: on a path with loss an old one is slower.
    """

    def __init__(self, far: tuple[str, ...], address: str, streams: int) -> None:
        self._stack = contextlib.ExitStack()
        settings = Settings.from_env(tcp_streams=streams)
        common: dict[str, Any] = {
            "providers": ("tcp",),
            "secret": secrets.token_bytes(32),
            "settings": settings,
        }
        host = f"[{address}]" if ":" in address else address
        there = self._stack.enter_context(PeerProcess(*far))
        there.call("open", **common, listen=f"{host}:0")
        self._common = common
        self._there = there
        self._remotes = [there.call("make", f"x{i}", PART) for i in range(PARTS)]
        self._buffers = [bytearray(secrets.token_bytes(PART)) for _ in range(PARTS)]

        self.how = ""

    def rate(self, seconds: float) -> float:
        with Engine(**self._common) as self._engine:
            self._engine.read(self._remotes[0][:1], bytearray(1)).wait(60)  # connected
            rate = self._rate(seconds)
            lines = self._engine.peers[0].explain()
            self.how = "; ".join(line for line in lines if "streams" in line)
        return rate

    def _rate(self, seconds: float) -> float:
        begin = time.perf_counter()
        count = 0
        flying = [self._write(i) for i in range(PARTS)]
        while time.perf_counter() - begin < seconds:
            flying[count % PARTS].wait(60)
            flying[count % PARTS] = self._write(count % PARTS)
            count += 1
        for transfer in flying:
            transfer.wait(60)
        return (count + PARTS) * PART / (time.perf_counter() - begin)

    def _write(self, part: int) -> Any:
        return self._engine.write(self._buffers[part], self._remotes[part])

    def check(self) -> None:
        """Raises SystemExit unless all bytes arrived."""
        for i in range(PARTS):
            if self._there.call("content", f"x{i}") != bytes(self._buffers[i]):
                raise SystemExit("wrong bytes arrived")

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def bare(far: tuple[str, ...], address: str, streams: int) -> Generator[Callable[[float], float]]:
    """One thread for each socket at either end."""
    program = str(build("stream_pair"))
    with subprocess.Popen([*far, program, address], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()

        def rate(seconds: float) -> float:
            command = [program, address, port, str(streams), str(seconds), str(SIZE)]
            return float(subprocess.run(command, check=True, capture_output=True).stdout)

        try:
            yield rate
        finally:
            server.kill()


@contextlib.contextmanager
def iperf3(far: tuple[str, ...], address: str, streams: int) -> Generator[Callable[[float], float]]:
    """What its server has received."""
    port = "5201"
    command = [*far, "iperf3", "-s", "-B", address, "-p", port]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        time.sleep(0.5)  # it says nothing when it listens

        def rate(seconds: float) -> float:
            line = ["iperf3", "-c", address, "-p", port, "-P", str(streams), "-t", str(seconds)]
            done = subprocess.run([*line, "--json"], check=True, capture_output=True)
            found = json.loads(done.stdout)["end"]["sum_received"]
            return float(found["bits_per_second"]) / 8

        try:
            yield rate
        finally:
            server.kill()


def measure(arguments: argparse.Namespace) -> tuple[dict[str, list[float]], str]:
    """Bytes a second of each side in each round, and how ours went."""
    far = tuple(shlex.split(arguments.far))
    where = (far, arguments.address, arguments.streams)
    with contextlib.ExitStack() as stack:
        ours = Ours(*where)
        stack.callback(ours.close)
        sides: dict[str, Callable[[float], float]] = {OURS: ours.rate}
        if shutil.which("iperf3"):
            sides["iperf3"] = stack.enter_context(iperf3(*where))
        if not arguments.iperf3_only:
            sides["bare sockets"] = stack.enter_context(bare(*where))
        rates: dict[str, list[float]] = {name: [] for name in sides}
        names = list(sides)
        for turn in range(arguments.rounds):
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                rates[name].append(sides[name](arguments.seconds))
        ours.check()
        return rates, ours.how


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--address", default="127.0.0.1", help="of the other end")
    parser.add_argument("--far", default="", help="command that starts what runs there")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--least", type=float, default=0.95)
    parser.add_argument("--iperf3-only", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    rates, how = measure(arguments)
    medians = {name: statistics.median(values) / 1e9 for name, values in rates.items()}
    ratio = medians[OURS] / max(rate for name, rate in medians.items() if name != OURS)
    shown = ", ".join(f"{name} {rate:.3f} GB/s" for name, rate in medians.items())
    verdict = "met" if ratio >= arguments.least else "MISSED"
    print(
        f"tcp to {arguments.address}: {ratio:.2f} (>= {arguments.least}) {verdict}; {shown}; {how}"
    )
    if arguments.json:
        result = {"schema": 1, "host": facts.host(), "ratio": ratio, "bytes_per_s": rates}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(ratio < arguments.least)


if __name__ == "__main__":
    main()
