"""Processes on the hosts of a Monarch host mesh. Imports monarch late; may import charge and fleet.

One Monarch proc a host runs an agent; the processes are the agent's. Monarch's own supervision
watches the agents, ours the processes.
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

from transport.errors import Unavailable
from transport.mesh.hosts.charge import Charge, open_fleet
from transport.mesh.hosts.printer import sink_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from transport.mesh.hosts.printer import Sink
    from transport.mesh.process import Process, Start

_LOCAL = "127.0.0.1"


class MonarchHost:
    """`processes` spread evenly over `hosts`, a Monarch HostMesh; None is `this_host()`.

    `address`: by what the hosts reach this one; by default its host name, and the loopback address
    where there is no other host. `logs` and `options` are those of a local host; each agent has
    one. Raises Unavailable without Monarch, or when agents do not come within `timeout` seconds.
    """

    name = "monarch"

    def __init__(
        self,
        hosts: Any = None,
        *,
        processes: int,
        address: str | None = None,
        logs: Sink | Literal["forward", "discard"] = "forward",
        timeout: float = 120.0,
        **options: Any,
    ) -> None:
        actor = _monarch()
        mesh = hosts if hosts is not None else actor.this_host()
        agents = mesh.size()
        self.size = processes
        here = address or (_LOCAL if hosts is None else socket.gethostname())
        self._fleet, charge = open_fleet(
            "monarch", here, agents, -(-processes // agents), sink_of(logs), timeout, options
        )
        try:
            self._procs = mesh.spawn_procs(per_host={"agents": 1})
            agent = self._procs.spawn("transport_agents", _agent_class(actor))
            agent.serve.call(charge).get(timeout=timeout)
        except BaseException:
            self._fleet.close()
            raise

    def start(self, ranks: Sequence[Start]) -> Sequence[Process]:
        return self._fleet.start(ranks)

    def close(self) -> None:
        procs, self._procs = self._procs, None
        self._fleet.close()
        if procs is not None:
            procs.stop().get()


def _monarch() -> Any:
    try:
        import monarch.actor
    except ImportError as error:
        raise Unavailable(
            f"Monarch cannot be imported: {error}", "pip install torchmonarch"
        ) from None
    return monarch.actor


def _agent_class(actor: Any) -> Any:
    """Made here, since its base class is Monarch's; Monarch sends it by value."""

    class TransportAgent(actor.Actor):  # type: ignore[misc]
        @actor.endpoint  # type: ignore[untyped-decorator]
        def serve(self, charge: Charge) -> None:
            """Returns at once: an endpoint that never ends would keep Monarch from stopping."""
            index = actor.current_rank().rank
            threading.Thread(
                target=charge.serve, args=(index,), name="mesh-agent", daemon=True
            ).start()

    return TransportAgent
