"""`transport demo`: a real model goes from one process to another, every way there is here."""

from __future__ import annotations

import secrets
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from transport.cli import facts
from transport.cli.bench_side import (
    MEMORY,
    listen_for,
    open_engine,
    pick_address,
    require_provider,
)
from transport.cli.demo_model import MODES
from transport.cli.options import emit_json, json_option
from transport.cli.progress import Progress
from transport.errors import Unavailable
from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from transport.cli.child import Child
    from transport.cli.demo_receiver import Pull
    from transport.engine.engine import Engine

PROVIDERS = ("shm", "verbs", "tcp")


@dataclass(frozen=True, slots=True)
class Row:
    """One way, one kind of memory, one mode: medians over the repetitions."""

    provider: str
    path: str
    memory: str
    mode: str
    gb_per_s: float
    limit_gb_per_s: float  # this machine's best one-thread copy of as many bytes, same run
    share_of_limit: float
    verified: bool


@dataclass(frozen=True, slots=True)
class Skip:
    """A provider that this machine does not have."""

    provider: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Model:
    """What is moved. `tensors` are the originals, as the package ships them."""

    file: str
    tensors: Mapping[str, Any]
    digests: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


@click.command("demo")
@click.option(
    "--provider",
    "wanted",
    multiple=True,
    type=click.Choice(PROVIDERS),
    help="Only this one (can be repeated); the default is every one that the machine has.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="How often each row is measured; a row shows medians.",
)
@json_option
def demo(wanted: tuple[str, ...], repeat: int, json_file: Path | None) -> None:
    """Move the all-MiniLM-L6-v2 weights from one process to another and check every byte.

    The sender keeps the weights in pool memory (the engine's, which a peer on this host maps), then
    in private memory (torch's own). The receiver, a second process, reads them tensor by tensor,
    then as one batch, and compares the SHA-256 of every tensor with the sender's, every time. The
    table compares each rate with this machine's best one-thread copy of as many bytes, measured
    right after each pull. A digest that differs makes the exit status 1.
    """
    from transport.cli.demo_model import weights_file

    file = weights_file()
    usable, skipped = split_usable(wanted)
    model, rows = run(file, usable, repeat)
    emit_json(to_json(model, rows, skipped, repeat), json_file, table(model, rows, skipped))
    if not rows or not all(row.verified for row in rows):
        sys.exit(1)


def split_usable(wanted: Sequence[str]) -> tuple[list[str], list[Skip]]:
    """The providers that can be used here, and why the others cannot.

    One that was asked for by name and is not usable raises Unavailable.
    """
    usable: list[str] = []
    skipped: list[Skip] = []
    for name in wanted or PROVIDERS:
        try:
            require_provider(name)
        except Unavailable as error:
            if wanted:
                raise
            skipped.append(Skip(name, error.reason, error.remedy))
        else:
            usable.append(name)
    return usable, skipped


def run(file: Path, providers: Sequence[str], repeat: int) -> tuple[Model, list[Row]]:
    """Starts the receiver, loads the model meanwhile, measures everything."""
    from transport.cli.child import Child
    from transport.cli.demo_model import digest, load
    from transport.cli.demo_receiver import receive

    secret = secrets.token_bytes(32)  # this run's own: no file of the user is touched
    total = len(providers) * len(MEMORY) * len(MODES) * repeat
    with Child(receive, secret) as receiver, Progress(total) as progress:
        progress.say(f"loading {file.name}")
        tensors = load(file)
        model = Model(str(file), tensors, {name: digest(it) for name, it in tensors.items()})
        bench = Bench(receiver, model, secret, repeat, progress)
        return model, [row for provider in providers for row in bench.provider(provider)]


@dataclass(frozen=True, slots=True)
class Bench:
    """The sender's side of the measuring."""

    receiver: Child
    model: Model
    secret: bytes
    repeat: int
    progress: Progress

    def provider(self, name: str) -> Iterator[Row]:
        listen = listen_for(name)
        with open_engine("sender", name, secret=self.secret, listen=listen) as engine:
            self.receiver.ask("connect", name, pick_address(engine.addresses, name))
            for memory in MEMORY:
                yield from self._memory(engine, name, memory)

    def _memory(self, engine: Engine, name: str, memory: str) -> Iterator[Row]:
        from transport.cli.demo_model import place

        placed = place(engine, self.model.tensors, memory)
        regions = {key: engine.register(it, access="read") for key, it in placed.items()}
        handles = {key: region.remote() for key, region in regions.items()}
        self.receiver.ask("prepare", memory, handles, self.model.digests)
        for mode in MODES:
            yield self._mode(name, memory, mode)
        for region in regions.values():
            region.close()

    def _mode(self, name: str, memory: str, mode: str) -> Row:
        self.progress.say(f"{name}, {memory} memory, {mode}")
        # The first finds the path and maps the memory: checked as the others are, not timed.
        pulls: list[Pull] = [self.receiver.ask("pull", mode)]
        for _ in range(self.repeat):
            pulls.append(self.receiver.ask("pull", mode))
            self.progress.advance()
        return make_row(pulls, self.model.nbytes, memory, mode)


def make_row(pulls: Sequence[Pull], size: int, memory: str, mode: str) -> Row:
    """The first pull counts for the digests only."""
    rate = size / statistics.median(pull.seconds for pull in pulls[1:]) / 1e9
    limit = max(
        size / statistics.median(pull.copy_ns[kind] for pull in pulls[1:])
        for kind in pulls[0].copy_ns
    )
    right = not any(pull.wrong for pull in pulls)
    last = pulls[-1]
    return Row(last.provider, last.path, memory, mode, rate, limit, rate / limit, right)


def to_json(
    model: Model, rows: Sequence[Row], skipped: Sequence[Skip], repeat: int
) -> dict[str, Any]:
    return {
        "schema": 1,
        "host": facts.host(),
        "model": {"file": model.file, "tensors": len(model.tensors), "bytes": model.nbytes},
        "repeat": repeat,
        "rows": [asdict(row) for row in rows],
        "skipped": [asdict(skip) for skip in skipped],
    }


# Narrow enough for 80 columns. "limit" is this machine's best copy in GB/s, "share" GB/s of it.
_COLUMNS = ("provider", "path", "memory", "tensors", "GB/s", "limit", "share", "SHA-256")
_WIDTH = 78


def table(model: Model, rows: Sequence[Row], skipped: Sequence[Skip]) -> str:
    """A rich table on a terminal, plain columns where stdout is something else."""
    title = f"all-MiniLM-L6-v2: {len(model.tensors)} tensors, {format_bytes(model.nbytes)}"
    cells = [_cells(model, row) for row in rows]
    drawn = _drawn(title, cells) if sys.stdout.isatty() else _plain(title, cells)
    notes = [f"{it.reason}; {it.remedy}".rstrip("; ") for it in skipped]
    return "\n".join([drawn, *notes])


def _cells(model: Model, row: Row) -> list[str]:
    count = len(model.tensors)
    return [
        row.provider,
        row.path,
        row.memory,
        row.mode,
        f"{row.gb_per_s:.2f}",
        f"{row.limit_gb_per_s:.2f}",
        f"{row.share_of_limit:.2f}",
        f"{count}/{count}" if row.verified else "DIFFERENT",
    ]


def _plain(title: str, cells: Sequence[Sequence[str]]) -> str:
    lines = [_COLUMNS, *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    padded = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([title, *padded])


def _drawn(title: str, cells: Sequence[Sequence[str]]) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if console.width < _WIDTH:
        return _plain(title, cells)
    drawn = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in _COLUMNS:
        numeric = column in ("GB/s", "limit", "share")
        drawn.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for line in cells:
        drawn.add_row(*line)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().rstrip("\n")
