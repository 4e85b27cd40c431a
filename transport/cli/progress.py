"""How far a command is: a bar where stderr is a terminal, plain lines where it is not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress as Bar


class Progress:
    """`total` steps. Writes to stderr only, so that stdout stays the result."""

    def __init__(self, total: int) -> None:
        self._bar = _bar() if sys.stderr.isatty() else None
        self._task = self._bar.add_task("", total=total) if self._bar is not None else None

    def say(self, text: str) -> None:
        """What begins now."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text, refresh=True)
        else:
            click.echo(text, err=True)

    def advance(self, steps: int = 1) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=steps, refresh=True)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # Only between measurements: a refresh thread would take the GIL inside them.
    return Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
