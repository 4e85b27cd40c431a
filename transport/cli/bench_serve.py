"""`transport bench serve`: the passive end of `transport bench p2p`, for another host."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import click

from transport.cli import child
from transport.cli.bench_side import MEMORY, listen_for, open_engine, publish_regions
from transport.cli.sizes import size_option
from transport.types import format_bytes

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from transport.memory.region import Region


@click.command("serve", short_help="Offer memory to `bench p2p --peer` of another host.")
@click.option(
    "--listen",
    required=True,
    multiple=True,
    metavar="ADDR",
    help="host:port, [v6]:port or unix:/path to serve on; port 0 takes any. Can be repeated.",
)
@click.option("--advertise", metavar="HOST", help="Name peers use, where it differs.")
@click.option(
    "--bytes",
    "size",
    callback=size_option,
    metavar="SIZE",
    default="256MiB",
    show_default=True,
    help="Size of each region; a peer's --size times --batch wraps round inside it.",
)
@click.option(
    "--memory",
    type=click.Choice([*MEMORY, "both"]),
    default="both",
    show_default=True,
    help="Kinds of memory to offer; each kind takes two regions.",
)
def serve(listen: tuple[str, ...], advertise: str | None, size: int, memory: str) -> None:
    """Offer memory for `transport bench p2p --peer ADDR` on another host, until Ctrl-C.

    Both ends need the same secret: TRANSPORT_SECRET_FILE or TRANSPORT_SECRET. What peers write goes
    to memory that nobody else uses.
    """
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with open_engine("bench-serve", None, listen=listen, advertise=advertise) as engine:
        memories = MEMORY if memory == "both" else (memory,)
        regions = publish_regions(engine, memories, ("read", "write"), size)
        for address in engine.addresses:
            click.echo(address)
        click.echo(f"serving {format_bytes(size)} regions; Ctrl-C ends it", err=True)
        while not stopped.wait(1.0):
            pass
        for region in regions:
            region.close()


def serve_child(pipe: Connection, options: dict[str, Any]) -> None:
    """The passive end that `transport bench p2p` starts by itself."""
    provider = options["provider"]
    listen = listen_for(provider)
    with open_engine("bench-peer", provider, secret=options["secret"], listen=listen) as engine:
        regions: list[Region] = []

        def start() -> tuple[str, ...]:
            made = publish_regions(engine, (options["memory"],), (options["op"],), options["size"])
            regions.extend(made)
            return engine.addresses

        child.serve(pipe, {"start": start})
