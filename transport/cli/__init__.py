"""The command `transport`: one file per verb. May import every room; no room imports it.

Results go to stdout, progress and complaints to stderr. Exit status: 0 when all went well, 1 when
something was measured or checked and is wrong, 2 for a command line that makes no sense, 130 after
Ctrl-C.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, NoReturn

import click

from transport.cli.bench import bench
from transport.cli.demo import demo
from transport.cli.doctor import doctor
from transport.cli.launch import launch
from transport.cli.plan import plan
from transport.cli.topology import topology
from transport.errors import TransportError

_INTERRUPTED = 130  # as shells say of a command that SIGINT ended


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="tensor-transport", prog_name="transport")
def commands() -> None:
    """Move tensors between processes: see what this machine can do, and how fast it does it."""


commands.add_command(bench)
commands.add_command(demo)
commands.add_command(doctor)
commands.add_command(launch)
commands.add_command(plan)
commands.add_command(topology)


def main() -> None:
    """The console script. A TransportError becomes one line; anything else is a bug."""
    try:
        commands.main(prog_name="transport")
    except TransportError as error:
        click.echo(f"transport: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:
            _leave()
        raise


def _leave() -> NoReturn:
    """Without taking apart what was imported, which takes torch more than a second.

    It makes sure of the status, too: CPython ends by SIGINT where an `exec` was interrupted.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)
