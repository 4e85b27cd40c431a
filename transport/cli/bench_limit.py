"""`transport bench limit`: what this machine can copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from transport.cli import facts
from transport.cli.bench_report import LIMIT_BYTES, Limit, Report, limits_table
from transport.cli.options import emit, json_option, size_option
from transport.cli.progress import Progress
from transport.types import format_bytes

if TYPE_CHECKING:
    from pathlib import Path


@click.command("limit")
@size_option
@json_option
def limit(sizes: tuple[int, ...], json_file: Path | None) -> None:
    """Print what one thread and all threads of this machine can copy.

    Two ways: memcpy, and non-temporal ("streaming") stores. 256 MiB is always among the sizes: it
    is what "this machine's copy limit" means when no size is named. The buffers are touched before
    and used again every time; a figure is the median of its copies.
    """
    report = Report(facts.host(), measure(sizes))
    emit(report, json_file, limits_table(report))


def measure(sizes: tuple[int, ...]) -> tuple[Limit, ...]:
    """The limits at these sizes and at 256 MiB, with progress on stderr."""
    from transport.cli.copy_limit import MOST_THREADS, measure_limits

    found: list[Limit] = []
    wanted = sorted({*sizes, LIMIT_BYTES})
    with Progress(len(wanted)) as progress:
        for size in wanted:
            progress.say(f"copy limit at {format_bytes(size)}")
            found += measure_limits(size, min(facts.cores(), MOST_THREADS))
            progress.advance()
    return tuple(found)
