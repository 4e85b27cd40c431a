"""`transport bench collectives`: collectives of processes on this machine, beside gloo."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli import facts
from transport.cli.bench_collectives_side import Found, Measure, check_dtype, rank_child
from transport.cli.bench_report import aligned, percentile
from transport.cli.child import Child
from transport.cli.options import creatable, emit_json, json_option
from transport.cli.progress import Progress
from transport.cli.sizes import sizes_option
from transport.errors import InvalidUse, Unavailable

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

SCHEMA = 1
KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather",
    "scatter",
)  # fmt: skip
_REDUCES = ("all_reduce", "reduce_scatter", "reduce")
_LARGE = 1 << 24  # bytes from which a tenth of the rounds is enough
_FEWEST = 5
_MOST_CALLS = 20  # that are timed together
_COLUMNS = (
    "size[B]", "count", "type", "redop", "kind", "place", "way", "time[us]", "algbw[GB/s]",
    "busbw[GB/s]", "#wrong", "of torch",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One way at one size. Seconds of a call are the median of the rounds, of the slowest rank in
    each."""

    kind: str
    size: int
    count: int
    type: str
    redop: str
    in_place: bool
    way: str
    seconds: float
    algbw: float
    busbw: float
    wrong: int
    speedup: float | None
    """How often as fast as torch.distributed's gloo in the same rounds."""


def factor(kind: str, ranks: int) -> float:
    """Bus bandwidth per algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if kind in ("broadcast", "reduce") else (ranks - 1) / ranks


def _kinds(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    kinds = KINDS if text == "all" else tuple(part.strip() for part in text.split(","))
    for kind in kinds:
        if kind not in KINDS:
            known = ", ".join(KINDS)
            raise click.BadParameter(f"{kind!r} is not one of {known}", context, parameter)
    return kinds


@click.command("collectives")
@click.option("--ranks", type=click.IntRange(1, 64), default=4, show_default=True,
              help="Processes on this machine.")  # fmt: skip
@click.option("--sizes", callback=sizes_option, metavar="SIZES", default="4KiB..64MiB",
              show_default=True, help="As nccl-tests: all parts together.")  # fmt: skip
@click.option("--kinds", callback=_kinds, metavar="KINDS", show_default=True,
              default="all_reduce,all_gather,broadcast", help='A list, or "all".')  # fmt: skip
@click.option("--dtype", default="float32", show_default=True, help="As torch names it.")
@click.option("--op", type=click.Choice(["sum", "prod", "min", "max"]), default="sum",
              show_default=True, help="Of reductions.")  # fmt: skip
@click.option("--place", type=click.Choice(["out", "in", "both"]), default="both",
              show_default=True, help="Out of place, in place.")  # fmt: skip
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
              help="cuda: a GPU for each rank.")  # fmt: skip
@click.option("--iters", "rounds", type=click.IntRange(1), default=40, show_default=True,
              help="Timed rounds; from 16 MiB on a tenth of them, at least 5.")  # fmt: skip
@click.option("--save", callback=creatable, metavar="FILE",
              type=click.Path(path_type=Path, dir_okay=False, writable=True),
              help="Write the fastest carriers, for TRANSPORT_COLLECTIVES_TABLE.")  # fmt: skip
@json_option
def collectives(save: Path | None, json_file: Path | None, **asked: Any) -> None:
    """Measure collectives between processes of this machine.

    The carriers and torch.distributed's gloo take turns in the same processes. A time is the median
    over rounds of the slowest rank; a round is up to 20 calls in a row. Every byte of the first
    is compared in every round (out of place, of the last one, too), and wrong ones make the exit
    status 1.
    """
    rows = run(**asked)
    if save is not None:
        from transport.collectives import table

        table.write(save, rules(rows, asked["device"], asked["ranks"]))
    report = {"schema": SCHEMA, "host": facts.host(), "ranks": asked["ranks"],
              "rows": [asdict(row) for row in rows]}  # fmt: skip
    emit_json(report, json_file, _table(rows))
    if any(row.wrong for row in rows):
        click.echo("transport: wrong bytes arrived", err=True)
        sys.exit(1)


def run(
    *,
    ranks: int,
    sizes: Sequence[int],
    kinds: Sequence[str],
    dtype: str,
    op: str,
    place: str,
    device: str,
    rounds: int,
) -> list[Row]:
    """Starts the ranks and measures every row."""
    itemsize = check_dtype(dtype)
    places = {"out": (False,), "in": (True,), "both": (False, True)}[place]
    rows: list[Row] = []
    with _ranks(ranks, device) as children, Progress(len(kinds) * len(sizes)) as progress:
        for kind in kinds:
            for size in sizes:
                progress.say(f"{kind} of {size} bytes")
                turns = rounds if size < _LARGE else max(rounds // 10, min(rounds, _FEWEST))
                for in_place in places if kind in _IN_PLACE else (False,):
                    asked = Measure(kind, size, dtype, op, in_place, turns, _calls(size))
                    rows += _rows(asked, ranks, itemsize, _ask_all(children, "measure", asked))
                progress.advance()
        _ask_all(children, "leave")
    return rows


def _calls(size: int) -> int:
    return min(_MOST_CALLS, max(_LARGE * 2 // size, 1))


_IN_PLACE = ("all_reduce", "reduce", "all_gather", "reduce_scatter")


@contextlib.contextmanager
def _ranks(ranks: int, device: str) -> Generator[list[Child], None, None]:
    if device == "cuda":
        _check_gpus(ranks)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        children = [
            stack.enter_context(Child(rank_child, rank, ranks, device)) for rank in range(ranks)
        ]
        names, store = (
            (["nccl", "onesided"], None) if device == "cuda" else (["onesided", "gloo"], "store")
        )
        where = None if store is None else f"{folder}/{store}"
        _ask_all(children, "join", f"unix:{folder}/door", names, where)
        yield children


def _check_gpus(ranks: int) -> None:
    import torch

    found = torch.cuda.device_count()
    if found < ranks:
        raise Unavailable(f"there are {found} GPUs for {ranks} ranks", f"give --ranks {found or 1}")


def _ask_all(children: list[Child], what: str, *arguments: Any) -> list[Any]:
    for child in children:
        child.tell(what, *arguments)
    return [child.answer() for child in children]


def _rows(asked: Measure, ranks: int, itemsize: int, found: list[dict[str, Found]]) -> list[Row]:
    """`found` is by rank."""
    times = {
        name: percentile([max(turn) for turn in zip(*(each[name].seconds for each in found))], 0.5)
        for name, first in found[0].items()
        if not first.refusal
    }
    parted = asked.kind not in ("all_reduce", "broadcast", "reduce")
    count = max(asked.nbytes // itemsize // (ranks if parted else 1), 1)
    size = count * itemsize * (ranks if parted else 1)
    rows: list[Row] = []
    for name, seconds in times.items():
        rate = size / seconds / 1e9
        base = times.get("torch gloo")
        redop = asked.op if asked.kind in _REDUCES else "none"
        wrong = sum(each[name].wrong for each in found)
        rows.append(Row(asked.kind, size, count, asked.dtype, redop, asked.in_place, name, seconds,
                        rate, rate * factor(asked.kind, ranks), wrong,
                        None if base is None else base / seconds))  # fmt: skip
    return rows


def rules(rows: Sequence[Row], device: str, ranks: int) -> list[Any]:
    """The fastest carrier by kind and size of a part; the slower of in and out of place counts."""
    from transport.collectives import table

    times: dict[str, dict[int, dict[str, float]]] = {}
    for row in rows:
        if row.way != "torch gloo":
            nbytes = row.count * check_dtype(row.type)
            by_way = times.setdefault(row.kind, {}).setdefault(nbytes, {})
            by_way[row.way] = max(by_way.get(row.way, 0.0), row.seconds)
    if not times:
        raise InvalidUse("nothing was measured that a table could hold")
    made: list[Any] = []
    for kind, found in times.items():
        made += table.learn(kind, device, found, ranks=ranks, near=True)
    return made


def _table(rows: Sequence[Row]) -> str:
    return "\n".join(aligned([list(_COLUMNS), *(_cells(row) for row in rows)]))


def _cells(row: Row) -> list[str]:
    return [
        str(row.size),
        str(row.count),
        row.type,
        row.redop,
        row.kind,
        "in" if row.in_place else "out",
        row.way.replace(" ", "-"),
        f"{row.seconds * 1e6:.1f}",
        f"{row.algbw:.3f}",
        f"{row.busbw:.3f}",
        str(row.wrong),
        "-" if row.speedup is None else f"{row.speedup:.2f}",
    ]
