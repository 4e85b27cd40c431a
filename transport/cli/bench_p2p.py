"""`transport bench p2p`: rates and latencies of reads or writes between two processes."""

from __future__ import annotations

import contextlib
import gc
import secrets
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from transport.cli import facts
from transport.cli.bench_limit import measure as measure_limits
from transport.cli.bench_report import Label, Report, Row, rows_table, summarise
from transport.cli.bench_serve import serve_child
from transport.cli.bench_side import (
    MEMORY,
    SOURCE_SEED,
    fill,
    is_pattern,
    make_buffer,
    open_engine,
    pick_address,
    region_name,
    require_provider,
)
from transport.cli.child import Child
from transport.cli.options import emit, json_option, size_option
from transport.cli.progress import Progress
from transport.control.address import parse
from transport.errors import DeadlineExceeded, InvalidUse, Unavailable
from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from transport.engine.engine import Engine
    from transport.engine.peer import Peer
    from transport.engine.transfer import Transfer
    from transport.memory.remote import RemoteRegion

WARM_UP = 3
_WORTH = 0.5  # seconds per row when --iters is not given, within the bounds below
_FEWEST, _MOST = 15, 2000
_LARGEST = 1 << 28  # bytes of a buffer that larger submissions wrap round in
_WRITE_SEED = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What the command line asks for."""

    op: str
    sizes: tuple[int, ...]
    batch: int
    provider: str | None
    memory: str
    iterations: int | None
    window: int = 1

    @property
    def buffer_bytes(self) -> int:
        largest = max(self.sizes)
        return max(largest, min(largest * self.batch, _LARGEST))

    def working_set(self, size: int) -> int:
        """The distinct bytes that one submission moves: the size whose copy limit is fair to it."""
        return size * min(self.batch, self.buffer_bytes // size)

    def iterations_for(self, seconds: float) -> int:
        """How often to submit what took so long once, alone."""
        wanted = int(_WORTH / seconds * self.window)
        return self.iterations or max(_FEWEST, self.window, min(_MOST, wanted))


def _known(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    if name is not None:
        from transport.providers import registry

        if name not in registry.names():
            known = ", ".join(registry.names())
            raise click.BadParameter(f"{name!r} is not one of {known}", context, parameter)
    return name


def _address(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        try:
            parse(text)
        except InvalidUse as error:
            raise click.BadParameter(str(error), context, parameter) from None
    return text


@click.command("p2p")
@click.option(
    "--op",
    type=click.Choice(["read", "write"]),
    default="read",
    show_default=True,
    help="What this process does to the other's memory.",
)
@size_option
@click.option(
    "--batch",
    type=click.IntRange(1, 1 << 20),
    default=1,
    show_default=True,
    help="Messages per submission; their places do not touch, so none are joined.",
)
@click.option(
    "--window",
    type=click.IntRange(1, 1 << 16),
    default=1,
    show_default=True,
    help="Submissions under way at once; 1 waits for each before the next begins.",
)
@click.option(
    "--provider",
    metavar="NAME",
    callback=_known,
    help="shm, verbs or tcp; the default is what the engine chooses.",
)
@click.option("--memory", type=click.Choice(MEMORY), default="pool", show_default=True,
              help="At both ends: the engine's own, or ordinary memory.")  # fmt: skip
@click.option(
    "--iters",
    "iterations",
    type=click.IntRange(1),
    help="Timed submissions per size; by default for about half a second, 15 to 2000.",
)
@click.option(
    "--peer",
    metavar="ADDR",
    callback=_address,
    help="Where `transport bench serve` listens: an address that it printed.",
)
@json_option
def p2p(
    op: str,
    sizes: tuple[int, ...],
    batch: int,
    window: int,
    provider: str | None,
    memory: str,
    iterations: int | None,
    peer: str | None,
    json_file: Path | None,
) -> None:
    """Measure one-sided reads or writes between this process and another.

    The other process is started by this command, or is `transport bench serve` at --peer. A time is
    from submit to the end of wait of one submission, after a warm-up; a rate is of all bytes over
    the time from the first submit to the end of the last wait. The copy limit of this machine is
    measured in the same run at each size. After the timed region the bytes are compared: a row
    whose bytes are wrong makes the exit status 1.
    """
    plan = Plan(op, sizes, batch, provider, memory, iterations, window)
    report = run(plan, peer)
    emit(report, json_file, rows_table(report))
    if not all(row.verified for row in report.rows):
        click.echo("transport: wrong bytes arrived", err=True)
        sys.exit(1)


def run(plan: Plan, peer_address: str | None) -> Report:
    """Connects, measures every size and its copy limit, verifies."""
    rows: list[Row] = []
    if plan.provider is not None:
        require_provider(plan.provider)
    with _connected(plan, peer_address) as (engine, peer):
        side = Side.open(engine, peer, plan)
        limits = measure_limits(tuple(plan.working_set(size) for size in plan.sizes))
        with Progress(len(plan.sizes)) as progress:
            for size in plan.sizes:
                progress.say(f"{plan.op} {plan.batch} x {format_bytes(size)}")
                rows.append(measure_size(side, plan, size))
                progress.advance()
    return Report(facts.host(), limits, tuple(rows))


@contextlib.contextmanager
def _connected(plan: Plan, peer_address: str | None) -> Generator[tuple[Engine, Peer], None, None]:
    """This end's engine and its peer: the process at `peer_address`, or one started here."""
    with contextlib.ExitStack() as stack:
        secret = None
        if peer_address is None:
            secret = secrets.token_bytes(32)  # this run's own: no file of the user is touched
            peer_address = _start_child(stack, plan, secret)
        engine = stack.enter_context(open_engine("bench", plan.provider, secret=secret))
        yield engine, engine.connect(peer_address)


def _start_child(stack: contextlib.ExitStack, plan: Plan, secret: bytes) -> str:
    options = {
        "provider": plan.provider,
        "secret": secret,
        "memory": plan.memory,
        "op": plan.op,
        "size": plan.buffer_bytes,
    }
    process = stack.enter_context(Child(serve_child, options))
    return pick_address(process.ask("start"), plan.provider)


@dataclass(frozen=True, slots=True)
class Side:
    """This end of the benchmark: its buffer and the peer's region."""

    engine: Engine
    remote: RemoteRegion
    buffer: Any

    @classmethod
    def open(cls, engine: Engine, peer: Peer, plan: Plan) -> Side:
        remote = find_region(peer, plan)
        if remote.nbytes < max(plan.sizes):
            text = f"the peer offers {remote.nbytes} bytes, less than the largest --size"
            raise Unavailable(text, "give `transport bench serve` a larger --bytes")
        size = min(plan.buffer_bytes, remote.nbytes)
        return cls(engine, remote.bytes(0, size), make_buffer(engine, plan.memory, size))


def find_region(peer: Peer, plan: Plan) -> RemoteRegion:
    try:
        return peer.lookup(region_name(plan.memory, plan.op))
    except DeadlineExceeded as error:
        text = f"the peer offers no {plan.memory} memory: {error}"
        raise Unavailable(text, "give both ends the same --memory") from error


def places(size: int, batch: int, room: int) -> list[int]:
    """Where the messages of a batch begin: from the top down, so that no two can be joined."""
    slots = room // size
    return [(slots - 1 - index % slots) * size for index in range(batch)]


def measure_size(side: Side, plan: Plan, size: int) -> Row:
    """One row. The bytes are renewed before the timed region and compared after it."""
    begin = submitter(side, plan, size)
    ends = places(size, plan.batch, side.buffer.nbytes)
    if plan.op == "read":
        side.buffer[:] = 0
    else:
        fill(side.buffer, _WRITE_SEED + size)  # what an earlier size wrote must not pass for it
    times, elapsed, last = timed(begin, plan.iterations_for, plan.window)
    low, high = min(ends), max(ends) + size
    label = Label(last.provider or "", plan.op, plan.memory, size, plan.batch, last.path or "",
                  plan.window)  # fmt: skip
    right = arrived(side, plan, low, high, _WRITE_SEED + size)
    limit = plan.working_set(size)
    return summarise(label, times, elapsed, verified=right, limit_bytes=limit)


def submitter(side: Side, plan: Plan, size: int) -> Callable[[], Transfer]:
    """A call that submits one batch."""
    from transport.engine.batch import Read, Write

    def request(at: int) -> Read | Write:
        there, here = side.remote.bytes(at, at + size), side.buffer[at : at + size]
        return Read(there, here) if plan.op == "read" else Write(here, there)

    requests = [request(at) for at in places(size, plan.batch, side.buffer.nbytes)]
    return lambda: side.engine.submit(requests, provider=plan.provider)


def timed(
    begin: Callable[[], Transfer], iterations: Callable[[float], int], window: int = 1
) -> tuple[list[int], int, Transfer]:
    """Each submission's nanoseconds from submit to the end of its wait, after a warm-up; those from
    the first submit to the last end; and the last transfer.

    `iterations` is told how many seconds the last submission of the warm-up took.
    """
    for _ in range(WARM_UP - 1):
        begin().wait()
    clock = time.perf_counter_ns
    start = clock()
    begin().wait()
    count = iterations((clock() - start) / 1e9)
    collecting = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        times, last = _each(begin, count, window)
        return times, clock() - start, last
    finally:
        if collecting:
            gc.enable()


def _each(begin: Callable[[], Transfer], count: int, window: int) -> tuple[list[int], Transfer]:
    """Submits `count` times and waits for the oldest when `window` are under way.

    The clock is read once for each: where a wait ends the next submission begins.
    """
    clock = time.perf_counter_ns
    now = clock()
    under_way = deque([(now, begin())])
    last = under_way[0][1]
    times: list[int] = []
    for begun in range(1, count + 1):
        while len(under_way) == window or (under_way and begun == count):
            start, last = under_way.popleft()
            last.wait()
            now = clock()
            times.append(now - start)
        if begun < window:
            now = clock()  # nothing was waited for
        if begun < count:
            under_way.append((now, begin()))
    return times, last


def arrived(side: Side, plan: Plan, low: int, high: int, seed: int) -> bool:
    """Whether the bytes are where they should be; those that were written are read back."""
    if plan.op == "read":
        return is_pattern(side.buffer[low:high], SOURCE_SEED, low)
    copy = make_buffer(side.engine, "private", high - low)
    side.engine.read(side.remote.bytes(low, high), copy).wait()
    return is_pattern(copy, seed, low)
