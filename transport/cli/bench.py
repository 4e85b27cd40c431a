"""`transport bench`: the group of benchmarks."""

from __future__ import annotations

import click

from transport.cli.bench_collectives import collectives
from transport.cli.bench_limit import limit
from transport.cli.bench_p2p import p2p
from transport.cli.bench_serve import serve


@click.group(short_help="Measure transfers, and what this machine can copy.")
def bench() -> None:
    """Measure: transfers between two processes, and what this machine can copy.

    Rates are GB/s with GB = 1e9 bytes; times are microseconds of time.perf_counter. Nothing but the
    result goes to stdout.
    """


bench.add_command(p2p)
bench.add_command(serve)
bench.add_command(limit)
bench.add_command(collectives)
