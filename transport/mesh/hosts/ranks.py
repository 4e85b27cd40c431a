"""Processes that a launcher started: torchrun, srun, Kubernetes, SkyPilot. The first becomes the
owner of the mesh, all of them, the first too, start the processes of the mesh as they are told.

May import agent, fleet, launchers and local. Who is who comes from the launcher's variables; that
it is the same job and the same secret is proven when an agent joins.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from transport.config import Settings
from transport.control.address import TcpAddress, parse
from transport.control.secret import Source, resolve
from transport.errors import InvalidUse, Unavailable
from transport.mesh.hosts.agent import Agent, serve
from transport.mesh.hosts.fleet import Fleet
from transport.mesh.hosts.launchers import Launched, ports_of, recognise
from transport.mesh.hosts.printer import sink_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from transport.mesh.hosts.printer import Sink

_LOCAL = ("localhost", "127.0.0.1", "::1")


def ranks_host(
    *,
    per_process: int | None = None,
    secret: Source = None,
    logs: Sink | Literal["forward", "discard"] = "forward",
    timeout: float = 300.0,
    **options: Any,
) -> Fleet:
    """The host of a job that a launcher started; returns in the job's first process alone.

    Every other process serves until the first is through, and ends: status 0 when the mesh was
    closed, 1 when its owner was lost or never came, 130 at a Ctrl-C. `per_process`: how many
    processes of the mesh each one runs (TRANSPORT_MESH_PROCESSES). `options` are those of a local
    host, in each. Raises Unavailable where no launcher started this process, or when the first
    cannot listen.
    """
    settings = Settings.from_env()
    launched = recognise(os.environ)
    proof = resolve(secret, settings)
    width = per_process if per_process is not None else settings.mesh_processes
    options["width"] = width
    addresses = addresses_of(launched, settings)
    if launched.index > 0:
        agent = Agent(addresses, proof, launched.job, launched.index)
        sys.exit(_serve(agent, timeout, options))
    door = listen(addresses)
    fleet = Fleet(
        [door],
        proof,
        launched.job,
        launched.count,
        size=launched.count * width,
        logs=sink_of(logs),
        timeout=timeout,
    )
    mine = TcpAddress("127.0.0.1", door.getsockname()[1])
    first = Agent([mine], proof, launched.job, 0)
    threading.Thread(
        target=serve, args=(first, timeout, options), name="mesh-agent", daemon=True
    ).start()
    return fleet


def _serve(agent: Agent, timeout: float, options: dict[str, Any]) -> int:
    """The owner's program says what was interrupted; here nothing of the user's runs."""
    try:
        return serve(agent, timeout, options)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def addresses_of(launched: Launched, settings: Settings) -> Sequence[TcpAddress]:
    """Where the first process may listen; the others look there in this order."""
    if settings.mesh_address is not None:
        address = parse(settings.mesh_address)
        if not isinstance(address, TcpAddress) or not address.port:
            raise InvalidUse("TRANSPORT_MESH_ADDRESS is a host and a port, as in node1:26600")
        return (address,)
    first = launched.first or ("127.0.0.1" if launched.count == 1 else "")
    if not first:
        raise Unavailable(
            f"{launched.launcher} does not tell where the first process runs",
            "set TRANSPORT_MESH_ADDRESS to its host and a free port",
        )
    return [TcpAddress(first, port) for port in ports_of(launched.job)]


def listen(addresses: Sequence[TcpAddress]) -> socket.socket:
    """On the first port that is free: on this host alone where the address says so, else on all of
    its addresses, since its name need not resolve here as it does elsewhere.
    """
    failed: OSError | None = None
    for address in addresses:
        hosts = ("127.0.0.1",) if address.host in _LOCAL else ("::", "0.0.0.0")
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            both = family == socket.AF_INET6
            if both and not socket.has_dualstack_ipv6():
                continue
            try:
                return socket.create_server(
                    (host, address.port), family=family, backlog=1024, dualstack_ipv6=both
                )
            except OSError as error:
                failed = error
    reason = f"the mesh's owner cannot listen at {addresses[0]}: {failed}"
    raise Unavailable(reason, "set TRANSPORT_MESH_ADDRESS to its host and a free port")
