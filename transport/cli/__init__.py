"""The command `transport`: one file per verb. May import every room; no room imports it.

Results go to stdout, progress and complaints to stderr. Exit status: 0 when all went well, 1 when
something was measured or checked and is wrong, 2 for a command line that makes no sense.
"""

from __future__ import annotations

import sys

import click

from transport.cli.bench import bench
from transport.cli.demo import demo
from transport.cli.doctor import doctor
from transport.cli.topology import topology
from transport.errors import TransportError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tensor-transport", prog_name="transport")
def commands() -> None:
    """Move tensors between processes: see what this machine can do, and how fast it does it."""


commands.add_command(bench)
commands.add_command(demo)
commands.add_command(doctor)
commands.add_command(topology)


def main() -> None:
    """The console script. A TransportError becomes one line; anything else is a bug."""
    try:
        commands.main(prog_name="transport")
    except TransportError as error:
        click.echo(f"transport: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
