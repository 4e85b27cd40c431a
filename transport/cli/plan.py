"""`transport plan`: what a reshard would move, from whom to whom, and how long it would take."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport.cli.options import creatable, emit_json, finite, json_option, write_file
from transport.cli.progress import Progress
from transport.errors import LayoutError

if TYPE_CHECKING:
    from transport.cli.plan_model import Model
    from transport.cli.plan_report import Link, Report
    from transport.sharding.parallelism import Parallelism
    from transport.sharding.places import Places
    from transport.sharding.state import StateLayout

_TOGETHER = ("apart", "hosts", "processes")
_PICTURES, _ROWS = 2, 6  # layouts that are drawn, and rows of each
_LARGE = 0.05  # of the bytes: tensors that no rule is for are worth a word


def _spread(context: click.Context, parameter: click.Parameter, text: str) -> Parallelism:
    from transport.sharding.parallelism import Parallelism

    try:
        return Parallelism.parse(text)
    except LayoutError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def _dtype(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    from transport.memory.dtypes import ITEMSIZES

    if name is not None and name not in ITEMSIZES:
        known = ", ".join(ITEMSIZES)
        raise click.BadParameter(f"{name} is none of {known}", context, parameter)
    return name


def _picture(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and file.suffix not in (".svg", ".png"):
        raise click.BadParameter(f"{file} ends with neither .svg nor .png", context, parameter)
    return creatable(context, parameter, file)


@click.command("plan")
@click.option("--from", "source", callback=_spread, required=True, metavar="PARALLELISM",
              help="How the sources hold the model, as fsdp=8.")  # fmt: skip
@click.option("--to", "target", callback=_spread, required=True, metavar="PARALLELISM",
              help="How the targets are to hold it, as tp=4,pp=2.")  # fmt: skip
@click.option("--model", required=True, metavar="NAME|FILE",
              help="deepseek-v3, kimi-k2 or llama-3-405b; FILE.safetensors.index.json (with the "
              "files beside it), FILE.safetensors, or shapes.json.")  # fmt: skip
@click.option("--dtype", callback=_dtype, metavar="NAME",
              help="Every tensor as this type, as bfloat16; scales are left out.")  # fmt: skip
@click.option("--rank", default=0, show_default=True, metavar="N",
              help="The target rank that is planned and timed alone.")  # fmt: skip
@click.option("--ranks-per-host", type=click.IntRange(1), metavar="N",
              help="So many ranks on each host, in their order, in both groups.")  # fmt: skip
@click.option("--together", type=click.Choice(_TOGETHER), default="apart", show_default=True,
              help="Whether the groups share hosts, or rank for rank their processes.")  # fmt: skip
@click.option("--gb-per-s", type=click.FloatRange(1e-6), default=50.0, callback=finite,
              show_default=True, help="Bandwidth of a rank's link.")  # fmt: skip
@click.option("--overhead-us", type=click.FloatRange(0), default=2.0, callback=finite,
              show_default=True, help="Time that a transfer takes besides its bytes.")  # fmt: skip
@click.option("--tensor", "tensors", multiple=True, metavar="NAME",
              help="Draw the layouts of this tensor; can be given again.")  # fmt: skip
@click.option("--plot", "plot", callback=_picture, metavar="FILE",
              type=click.Path(path_type=Path, dir_okay=False, writable=True),
              help="Draw who sends what to whom, as FILE.svg or FILE.png.")  # fmt: skip
@json_option
def plan(
    source: Parallelism,
    target: Parallelism,
    model: str,
    dtype: str | None,
    rank: int,
    ranks_per_host: int | None,
    together: str,
    gb_per_s: float,
    overhead_us: float,
    tensors: tuple[str, ...],
    plot: Path | None,
    json_file: Path | None,
) -> None:
    """Show what it takes to move a model from one sharding to another. Nothing is moved.

    A parallelism is a list of pp, dp, fsdp, tp, ep and etp. The ranks are numbered with tp
    innermost, then fsdp, dp and pp. ep takes the ranks of a stage; it adds none. The time is that
    of the slowest link: transfers x overhead + bytes / bandwidth.
    """
    from transport.cli.plan_model import is_name_or_file, load_model
    from transport.cli.plan_report import Link
    from transport.sharding.models import MODELS

    places = _places(source, target, ranks_per_host, together)
    if not 0 <= rank < target.size:
        raise click.BadParameter(
            f"there are target ranks 0 to {target.size - 1}", param_hint="'--rank'"
        )
    if not is_name_or_file(model):
        raise click.BadParameter(
            f"{model!r} is neither a file nor one of {', '.join(MODELS)}", param_hint="'--model'"
        )
    found = load_model(model, dtype)
    for name in tensors:
        if name not in found.table:
            raise click.BadParameter(f"{found.name} has no {name}", param_hint="'--tensor'")
    _warn_of_names(found, target)
    report, states = _measure(found, source, target, places, rank, Link(gb_per_s, overhead_us))
    if plot is not None:
        _draw(plot, report)
    emit_json(report.to_json(), json_file, _text(report, states, tensors))


def _places(
    source: Parallelism, target: Parallelism, ranks_per_host: int | None, together: str
) -> tuple[Places | None, Places | None]:
    """Both None: nobody is near anybody."""
    from transport.sharding.places import Places

    if together == "apart":
        return None, None
    if together == "hosts" and ranks_per_host is None:
        raise click.UsageError("--together hosts needs --ranks-per-host N")
    made: list[Places] = []
    for ranks in (source.size, target.size):
        process = list(range(ranks)) if together == "processes" else [None] * ranks
        host = [rank // ranks_per_host if ranks_per_host else None for rank in range(ranks)]
        made.append(Places(process, host))
    return made[0], made[1]


def _warn_of_names(model: Model, target: Parallelism) -> None:
    from transport.sharding.models import nbytes
    from transport.sharding.rules import unmatched

    names = unmatched(model.table, model.rules) if target.tp > 1 else []
    share = nbytes({name: model.table[name] for name in names}) / nbytes(model.table)
    if share > _LARGE:
        click.echo(
            f"transport: no rule says how tensor parallel ranks cut {len(names)} tensors with "
            f"{share:.0%} of the bytes ({names[0]}, ...): each of them is given all. "
            'A shapes.json can bring "rules".',
            err=True,
        )


def _measure(
    model: Model,
    source: Parallelism,
    target: Parallelism,
    places: tuple[Places | None, Places | None],
    rank: int,
    link: Link,
) -> tuple[Report, tuple[StateLayout, StateLayout]]:
    from transport.cli.plan_report import Report, Side
    from transport.sharding.models import nbytes
    from transport.sharding.plan import plan as plan_one
    from transport.sharding.rules import sharded
    from transport.sharding.traffic import traffic

    states = sharded(model.table, source, model.rules), sharded(model.table, target, model.rules)
    with Progress(target.size + 1) as progress:
        progress.say(f"planning target rank {rank}")
        start = time.perf_counter()
        one = plan_one(*states, rank, source_places=places[0], target_places=places[1])
        rank_s = time.perf_counter() - start
        progress.advance()
        progress.say(f"planning all {target.size} target ranks")
        start = time.perf_counter()
        moved = traffic(*states, *places, step=lambda _: progress.advance())
        cluster_s = time.perf_counter() - start
    report = Report(
        model=model.name,
        tensors=len(model.table),
        nbytes=nbytes(model.table),
        source=Side(str(source), source.size),
        target=Side(str(target), target.size),
        rank=rank,
        rank_plan_s=rank_s,
        rank_copies=len(one),
        rank_bytes=one.nbytes,
        cluster_plan_s=cluster_s,
        traffic=moved,
        link=link,
    )
    return report, states


def _draw(file: Path, report: Report) -> None:
    from transport.cli import heatmap

    matrix = report.traffic.matrix
    if file.suffix == ".png":
        write_file(file, heatmap.png(matrix))
        return
    title = f"{report.model}: {report.source.spread} to {report.target.spread}"
    notes = [
        f"{label}: {words}"
        for label, words in report.rows()
        if label in ("bytes", "imbalance", "time")
    ]
    write_file(file, heatmap.svg(matrix, title, notes).encode())


def _text(report: Report, states: tuple[StateLayout, StateLayout], tensors: tuple[str, ...]) -> str:
    from transport.cli import heatmap

    lines = [f"{label:<13} {words}" for label, words in report.rows()]
    for side, state in zip(("sources", "targets"), states):
        drawn = _pictures(state, tensors)
        lines += ["", f"What {side} hold:", *(f"  {line}".rstrip() for line in drawn)]
    return "\n".join([*lines, "", *heatmap.text(report.traffic.matrix)])


def _pictures(state: StateLayout, tensors: tuple[str, ...]) -> list[str]:
    from transport.sharding.picture import picture_of, picture_of_state

    if not tensors:
        return picture_of_state(state, layouts=_PICTURES, rows=_ROWS).splitlines()
    drawn = [f"{name}: {picture_of(state[name].layout, rows=_ROWS)}" for name in tensors]
    return "\n".join(drawn).splitlines()
