"""Options and endings that several commands share."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli.sizes import sizes_option
from transport.errors import NativeError

if TYPE_CHECKING:
    from transport.cli.bench_report import Report

size_option = click.option(
    "--size",
    "sizes",
    callback=sizes_option,
    metavar="SIZES",
    default="4KiB..256MiB",
    show_default=True,
    help="Bytes per message: one size, a list (4KiB,1MiB), or a range that climbs by 4.",
)


def creatable(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    """Said before anything is measured, not after."""
    if file is None or str(file) == "-":
        return file
    if file.is_dir():  # as "" is, which click takes for the name of a file
        raise click.BadParameter(f"{file} is a folder", context, parameter)
    if not file.exists():
        folder = file.absolute().parent
        if not folder.is_dir():
            raise click.BadParameter(f"there is no folder {folder}", context, parameter)
        if not os.access(folder, os.W_OK):
            raise click.BadParameter(f"nothing can be written in {folder}", context, parameter)
    return file


json_option = click.option(
    "--json",
    "json_file",
    callback=creatable,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, writable=True, allow_dash=True),
    help="Write the result as JSON to this file; - writes it to stdout instead of the table.",
)


def emit(result: Report, json_file: Path | None, table: str) -> None:
    """The table to stdout and the JSON to its file; `-` puts the JSON in the table's place."""
    emit_json(result.to_json(), json_file, table)


def emit_json(values: dict[str, Any], json_file: Path | None, table: str) -> None:
    text = json.dumps(rounded(values), indent=1)
    if json_file is not None and str(json_file) == "-":
        click.echo(text)
        return
    click.echo(table)
    if json_file is not None:
        write_file(json_file, (text + "\n").encode())


def write_file(file: Path, content: bytes) -> None:
    """Raises NativeError where the disk is full, and the like."""
    try:
        file.write_bytes(content)
    except OSError as error:
        words, number = error.strerror or "failed", error.errno or 0
        raise NativeError(words, operation=f"writing {file}", errno=number) from None


def finite(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """Ranges let nan and inf through."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number", context, parameter)
    return value


def rounded(value: Any) -> Any:
    """Five significant digits: what a clock can tell, and what a reader can bear."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value
