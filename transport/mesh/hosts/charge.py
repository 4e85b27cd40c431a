"""A fleet whose agents another runtime starts: its door, and what each agent must be told.

May import agent, fleet and control's secret. A Charge travels by the other runtime's own messages,
the secret with it: it is as safe there as they are.
"""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transport.config import Settings
from transport.control.address import TcpAddress
from transport.control.secret import Secret, resolve, user_file
from transport.control.secret import read_file as read_secret
from transport.mesh.hosts.agent import Agent, serve
from transport.mesh.hosts.fleet import Fleet

if TYPE_CHECKING:
    from transport.mesh.hosts.printer import Sink


@dataclass(frozen=True, slots=True)
class Charge:
    """Plain data: picklable, for an agent anywhere."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    job: str
    timeout: float
    options: dict[str, Any]  # of its local host

    def serve(self, index: int) -> int:
        """Runs an agent in this thread until the fleet is closed (0) or lost (1)."""
        environment = {
            "TRANSPORT_SECRET": self.secret.decode(),
            **self.options.get("environment", {}),
        }
        agent = Agent([TcpAddress(self.host, self.port)], Secret(self.secret), self.job, index)
        return serve(agent, self.timeout, {**self.options, "environment": environment})


def open_fleet(
    name: str,
    host: str,
    agents: int,
    width: int,
    logs: Sink,
    timeout: float,
    options: dict[str, Any],
) -> tuple[Fleet, Charge]:
    """`host`: by what address of this machine the agents reach it; it listens there alone.

    The processes get the secret of this one, so that engines everywhere have the same.
    """
    text = _secret_text(Settings.from_env())
    job = f"{name} {secrets.token_hex(8)}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.create_server((host, 0), family=family, backlog=1024)
    fleet = Fleet(
        [door],
        Secret(text),
        job,
        agents,
        size=agents * width,
        name=name,
        logs=logs,
        timeout=timeout,
    )
    port = int(door.getsockname()[1])
    return fleet, Charge(host, port, text, job, timeout, {**options, "width": width})


def _secret_text(settings: Settings) -> bytes:
    """As control.secret.resolve finds it, which keeps it to itself."""
    resolve(None, settings)  # makes the user's file, and checks
    if settings.secret is not None:
        return settings.secret.encode()
    if settings.secret_file is not None:
        return read_secret(settings.secret_file)
    return read_secret(user_file(), follow=False)
