"""Transfers and what they are compared with, turn by turn in one run.

Each function returns the times of both in nanoseconds; the two take turns, and who begins changes
every round, so that a busy moment of the machine meets both.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.baselines import process_vm
from benchmarks.baselines.socket_pair import SocketPair
from transport.cli import child
from transport.cli.bench_side import (
    fill,
    is_pattern,
    listen_for,
    make_buffer,
    open_engine,
    pick_address,
)
from transport.cli.copy_limit import KINDS, CopyBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from multiprocessing.connection import Connection

    from transport import Engine, RemoteRegion

Times = dict[str, list[int]]
OURS = "transport"

_SEED = 5
_WARM_UP = 2


@dataclass
class Ends:
    """This process's engine and buffer, and the other process's region."""

    engine: Engine
    buffer: Any
    remote: RemoteRegion
    provider: str
    pid: int
    address: int  # of the region in the other process

    def once(self, op: str) -> int:
        """Nanoseconds of one transfer, submit to wait."""
        begin = time.perf_counter_ns()
        if op == "read":
            transfer = self.engine.read(self.remote, self.buffer, provider=self.provider)
        else:
            transfer = self.engine.write(self.buffer, self.remote, provider=self.provider)
        transfer.wait()
        return time.perf_counter_ns() - begin

    def check(self, path: str) -> None:
        """The bytes are right and went the way that this measure is about."""
        self.buffer[:] = 0
        transfer = self.engine.read(self.remote, self.buffer, provider=self.provider).wait()
        if not is_pattern(self.buffer, _SEED):
            raise SystemExit(f"{self.provider}: wrong bytes arrived")
        if transfer.path != path:
            raise SystemExit(f"{self.provider}: went by {transfer.path!r}, not by {path!r}")


def _own(pipe: Connection, provider: str, memory: str, size: int, secret: bytes) -> None:
    """The other process: owns the region."""
    listen = listen_for(provider)
    with open_engine("owner", provider, secret=secret, listen=listen) as engine:
        buffer = make_buffer(engine, memory, size)
        fill(buffer, _SEED)
        with engine.register(buffer) as region:
            facts = (engine.addresses, region.remote(), buffer.ctypes.data)
            child.serve(pipe, {"facts": lambda: facts})


@contextlib.contextmanager
def ends(provider: str, memory: str, size: int) -> Generator[Ends, None, None]:
    secret = secrets.token_bytes(32)
    with (
        child.Child(_own, provider, memory, size, secret) as owner,
        open_engine("measure", provider, secret=secret) as engine,
    ):
        addresses, remote, address = owner.ask("facts")
        engine.connect(pick_address(addresses, provider))
        buffer = make_buffer(engine, memory, size)
        yield Ends(engine, buffer, remote, provider, owner.pid, address)


def alternate(sides: dict[str, Callable[[], int]], rounds: int) -> Times:
    """Every side once per round, after a warm-up."""
    for once in sides.values():
        for _ in range(_WARM_UP):
            once()
    times: Times = {name: [] for name in sides}
    names = list(sides)
    for turn in range(rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            times[name].append(sides[name]())
    return times


def pool_read(size: int, rounds: int) -> Times:
    """A read of the peer's pool memory against each way to copy with one thread."""
    with ends("shm", "pool", size) as pair, CopyBuffers(size) as buffers:

        def copy(kind: str) -> Callable[[], int]:
            return lambda: buffers.times(size, kind, 1, 1)[0]

        usable = [kind for kind in KINDS if buffers.times(size, kind, 1, 1)]
        sides = {OURS: lambda: pair.once("read"), **{kind: copy(kind) for kind in usable}}
        times = alternate(sides, rounds)
        pair.check("mapped")
        return times


def private_read(size: int, rounds: int) -> Times:
    """A read of the peer's private memory against process_vm_readv between the same addresses."""
    with ends("shm", "private", size) as pair:

        def raw() -> int:
            begin = time.perf_counter_ns()
            process_vm.read(pair.pid, pair.address, pair.buffer.ctypes.data, size)
            return time.perf_counter_ns() - begin

        times = alternate({OURS: lambda: pair.once("read"), "process_vm_readv": raw}, rounds)
        pair.check("process_vm")
        return times


def tcp(op: str, size: int, rounds: int) -> Times:
    """A read or write over loopback TCP against two bare sockets."""
    with ends("tcp", "private", size) as pair, SocketPair(size, op) as bare:
        if op == "write":
            fill(pair.buffer, _SEED)
        times = alternate({OURS: lambda: pair.once(op), "bare sockets": bare.once}, rounds)
        pair.check("tcp")
        return times
