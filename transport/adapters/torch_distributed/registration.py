"""How torch comes to know the backend, and what it makes of it for each group.

May import group and errors. Imports torch.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from transport.collectives import hub
from transport.collectives.communicator import Communicator
from transport.control.address import TcpAddress, parse
from transport.errors import PeerError, Unavailable

if TYPE_CHECKING:
    import datetime

    from transport.adapters.torch_distributed.group import Methods

NAME = "transport"
_DEVICES = ["cpu", "cuda"]
_KEY = "transport"


def register() -> None:
    """Makes the name known to torch. Idempotent. Raises Unavailable for a torch before 2.13."""
    if _version() < (2, 13):
        raise Unavailable(
            f"torch {torch.__version__} takes no backend written in Python", "use 2.13 or newer"
        )
    if NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, _make, extended_api=True, devices=_DEVICES)


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _make(options: Any, _more: Any = None) -> Methods:
    """Called by torch on each member of a group that is made."""
    from transport.adapters.torch_distributed.group import TransportBackend, TransportGroup

    comm = communicator(
        options.store, options.group_rank, options.group_size, options.timeout, options.group_id
    )
    kind: Any = TransportGroup if _version() < (2, 14) else TransportBackend
    made: Methods = kind(options.group_rank, options.group_size)
    made.set_up(comm)
    return made


def communicator(
    store: Any, rank: int, size: int, timeout: datetime.timedelta, group_id: str
) -> Communicator:
    """The ranks of a group meet at the engine of its rank 0, which torch's store tells them."""
    seconds = timeout.total_seconds()
    if rank == 0:
        mine = hub.here(**_listening())
        told = {
            "name": f"torch.{group_id or 'group'}.{uuid.uuid4().hex}"[-200:],
            "at": _outside(list(mine.engine.addresses)),
        }
        store.set(_KEY, json.dumps(told))
    else:
        told = _read(store.get(_KEY))
    at = None if rank == 0 else told["at"]
    return Communicator.join(
        told["name"], rank, size, at, deadline=seconds, operation_deadline=seconds
    )


def _read(data: bytes) -> dict[str, str]:
    try:
        told = json.loads(data)
        return {"name": str(told["name"]), "at": str(told["at"])}
    except (ValueError, KeyError, TypeError):
        raise PeerError("rank 0 has put something into the store that is no address") from None


def _listening() -> dict[str, str]:
    """Where rank 0's engine listens, if it is not open yet: towards the job's master, or on this
    host only where that is on this host."""
    master = os.environ.get("MASTER_ADDR", "localhost")
    try:
        found = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)
        with socket.socket(found[0][0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[0][4])  # of a datagram socket: sends nothing
            own = str(probe.getsockname()[0])
    except OSError:
        return {}
    alone = own.startswith("127.") or own == "::1"
    return {} if alone else {"listen": str(TcpAddress(own, 0))}


def _outside(addresses: list[str]) -> str:
    """That by which other hosts reach it, where there is one."""
    tcp = [each for each in addresses if isinstance(parse(each), TcpAddress)]
    return (tcp or addresses)[0]
