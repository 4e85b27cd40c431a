"""`transport demo`: a real model goes from four processes to two that shard it otherwise."""

from __future__ import annotations

import os
import secrets
import signal
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

from transport.cli import facts
from transport.cli.bench_side import MEMORY, require_provider
from transport.cli.demo_model import READERS, TRAINERS, VERSIONS
from transport.cli.options import emit_json, json_option
from transport.cli.progress import Progress
from transport.errors import Unavailable
from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from transport.cli.demo_roles import Sync
    from transport.mesh.actor_mesh import ActorMesh
    from transport.mesh.process_mesh import ProcessMesh

PROVIDERS = ("shm", "verbs", "tcp")
_TOGETHER = 0.01  # seconds from asking the readers to their beginning, all at once


@dataclass(frozen=True, slots=True)
class Row:
    """One way and one kind of memory: medians over the repetitions, all readers together."""

    provider: str
    path: str
    memory: str
    gb_per_s: float
    limit_gb_per_s: float  # the best copy of as many bytes by as many threads, same run
    share_of_limit: float
    verified: bool  # every digest of every fetch, of all versions


@dataclass(frozen=True, slots=True)
class Skip:
    """A provider that this machine does not have."""

    provider: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Model:
    """What is moved. `digests` are, by reader and version, of the slices of the file."""

    file: str
    tensors: int
    nbytes: int
    digests: Sequence[Mapping[int, Mapping[str, str]]]


@click.command("demo", short_help="Move a real model to readers that shard it otherwise.")
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
    """Move the all-MiniLM-L6-v2 weights from four trainers to two readers that shard them
    otherwise, and check every byte.

    Four actors hold rows of every tensor (FSDP), as slices of the file, in pool memory (the
    engine's, which a peer on this host maps) and then in private memory. Two more fetch what they
    need for tensor parallelism: columns of the matrices, and all of the vectors. They fetch three
    versions, each of which the trainers make in the same memory; before the third one reader is
    killed, and another takes its place. Every tensor's SHA-256 is compared with that of the file's
    slice, at every fetch. The table compares the rate of both readers together, at the fetches
    that follow, with this machine's best copy of as many bytes by two threads, measured right after
    each. A digest that differs makes the exit status 1.
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
    """Starts the trainers and readers, slices the file meanwhile, measures everything."""
    total = len(providers) * len(MEMORY) * (len(VERSIONS) + repeat)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(file))
        progress = stack.enter_context(Progress(total))
        progress.say(f"loading {file.name}")
        model = load(file)
        bench = Bench(cluster, model, repeat, progress)
        return model, [bench.row(name, memory) for name in providers for memory in MEMORY]


def load(file: Path) -> Model:
    """What the readers are to hold, by slicing the file."""
    from transport.cli.demo_model import digests_of, layouts

    source, target = layouts(file)
    digests = [digests_of(file, target, rank) for rank in range(READERS)]
    return Model(str(file), len(source), source.nbytes, digests)


class Cluster(ExitStack):
    """Two meshes of actors. This run's secret is its own: no file is touched."""

    trainers: ActorMesh
    readers: ActorMesh

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, self._secret = file, secrets.token_bytes(32)

    def __enter__(self) -> Cluster:
        from transport.cli.demo_roles import Reader, Trainer

        self.trainers = self._start("trainers", TRAINERS).spawn("trainer", Trainer, *self._what)
        self._homes = self._start("readers", READERS)
        self._homes.supervise("escalate", on_failure=lambda crash: True)  # the demo kills one
        self.readers = self._homes.spawn("reader", Reader, *self._what)
        return self

    @property
    def _what(self) -> tuple[Path, bytes]:
        return self._file, self._secret

    def _start(self, name: str, count: int) -> ProcessMesh:
        from transport.mesh.hosts.choice import processes

        return self.enter_context(processes(count, name=name))

    def restart_reader(self, rank: int) -> None:
        """Kills it, as a crash would; another one takes its place in the same mesh."""
        os.kill(self.readers.slice(rank=rank).pid.call_one().get(), signal.SIGKILL)
        self._homes.replace(rank)


@dataclass(frozen=True, slots=True)
class Fetch:
    """What all readers got at one time."""

    gb_per_s: float
    syncs: Sequence[Sync]


@dataclass(frozen=True, slots=True)
class Bench:
    """The parent's side of the measuring."""

    cluster: Cluster
    model: Model
    repeat: int
    progress: Progress
    fetches: list[Fetch] = field(default_factory=list[Fetch])

    def row(self, provider: str, memory: str) -> Row:
        """Three versions, with a reader restarted before the last; then that again, timed."""
        self.fetches.clear()
        trainers, readers = self.cluster.trainers, self.cluster.readers
        where = trainers.open.call(provider, memory).get().values()
        readers.open.call(provider, memory, where).get()
        for version in VERSIONS:
            self.progress.say(f"{provider}, {memory} memory, version {version}")
            trainers.publish.call(version).get()
            if version == VERSIONS[-1]:
                self.cluster.restart_reader(1)
                readers.slice(rank=1).open.call_one(provider, memory, where).get()
            self._fetch(version)
        first = len(self.fetches)
        limits = [self._again() for _ in range(self.repeat)]
        return make_row(self.fetches, first, limits, memory)

    def _again(self) -> dict[str, float]:
        """The last version once more, and right after it a copy of as many bytes, each way."""
        from transport.cli.demo_roles import COPIES

        self._fetch(VERSIONS[-1])
        nbytes = sum(sync.nbytes for sync in self.fetches[-1].syncs)
        rates: dict[str, float] = {}
        for kind in COPIES:
            at = time.monotonic() + _TOGETHER
            ends = self.cluster.readers.copy.call(kind, at).get().values()
            if None not in ends:
                rates[kind] = nbytes / (max(ends) - at) / 1e9
        return rates

    def _fetch(self, version: int) -> None:
        at = time.monotonic() + _TOGETHER
        digests = [of_reader[version] for of_reader in self.model.digests]
        syncs = self.cluster.readers.fetch.call(version, digests, at).get().values()
        nbytes = sum(sync.nbytes for sync in syncs)
        rate = nbytes / (max(sync.ended for sync in syncs) - at) / 1e9
        self.fetches.append(Fetch(rate, syncs))
        self.progress.advance()


def make_row(
    fetches: Sequence[Fetch], first: int, limits: Sequence[Mapping[str, float]], memory: str
) -> Row:
    """The fetches before `first` count for the digests only."""
    rate = statistics.median(fetch.gb_per_s for fetch in fetches[first:])
    limit = max(statistics.median(found[kind] for found in limits) for kind in limits[0])
    syncs = [sync for fetch in fetches for sync in fetch.syncs]
    carried = {how: 0 for sync in syncs for how in sync.carried}
    paths = [how.rstrip(")").split(" (") for how in carried]
    provider, path = ("+".join(dict.fromkeys(it)) for it in zip(*paths))
    right = not any(sync.wrong for sync in syncs)
    return Row(provider, path, memory, rate, limit, rate / limit, right)


def to_json(
    model: Model, rows: Sequence[Row], skipped: Sequence[Skip], repeat: int
) -> dict[str, Any]:
    return {
        "schema": 2,
        "host": facts.host(),
        "model": {"file": model.file, "tensors": model.tensors, "bytes": model.nbytes},
        "trainers": TRAINERS,
        "readers": READERS,
        "versions": list(VERSIONS),
        "restarted": 1,
        "repeat": repeat,
        "rows": [asdict(row) for row in rows],
        "skipped": [asdict(skip) for skip in skipped],
    }


# Narrow enough for 80 columns.
_COLUMNS = ("provider", "path", "memory", "GB/s", "limit", "share", "SHA-256")
_WIDTH = 78
_LEGEND = (
    f"GB/s: all readers together; limit: the best copy of as many bytes by {READERS}"
    " threads,\nright after each; share: GB/s, of that limit."
)


def table(model: Model, rows: Sequence[Row], skipped: Sequence[Skip]) -> str:
    """A rich table on a terminal, plain columns where stdout is something else."""
    title = (
        f"all-MiniLM-L6-v2: {model.tensors} tensors, {format_bytes(model.nbytes)}, from {TRAINERS}"
        f" trainers to {READERS} readers"
    )
    cells = [_cells(model, row) for row in rows]
    drawn = _drawn(title, cells) if sys.stdout.isatty() else _plain(title, cells)
    notes = [_LEGEND] if rows else []
    notes += [f"{it.reason}; {it.remedy}".rstrip("; ") for it in skipped]
    return "\n".join([drawn, *notes])


def _cells(model: Model, row: Row) -> list[str]:
    count = model.tensors * READERS * len(VERSIONS)
    return [
        row.provider,
        row.path,
        row.memory,
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
