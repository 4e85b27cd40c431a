"""Communicators of actors: those that were spawned together, along dimensions of their mesh.

May import context, meets, reach, and the room of collectives when one is made.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse
from transport.mesh import context, meets, reach

if TYPE_CHECKING:
    from transport.collectives.communicator import Communicator
    from transport.mesh.shape import Point

_ASKING = 0.2  # seconds before the owner is asked again


def communicator(
    *dimensions: str,
    name: str = "",
    deadline: float = 60.0,
    operation_deadline: float = 300.0,
) -> Communicator:
    """The Communicator of the actors that were spawned with this one and differ from it in these
    dimensions alone; of all of them without a dimension. Ranks are in row-major order of the
    dimensions as they are given.

    All of them call it, within `deadline` seconds. Communicators that are open at the same time
    over the same dimensions have different names. After `ProcessMesh.replace` all close theirs and
    make new ones. It blocks: an async endpoint calls it by `asyncio.to_thread`.

    Raises InvalidUse outside of an actor; else what `Communicator.join` raises.
    """
    here = context.current()
    if here is None or here.meet is None:
        raise InvalidUse("communicator() is for actors; others use Communicator.join")
    rank, size, key = _place(here.point, dimensions)
    key = f"{key}/{name}"
    from transport.collectives.bootstrap import join
    from transport.collectives.choice import Choice
    from transport.collectives.communicator import Communicator
    from transport.collectives.hub import here as hub_here
    from transport.control.address import TcpAddress

    hub = hub_here(listen=[str(TcpAddress(host, 0)) for host in reach.hosts()] or None)
    at: Any = None
    if rank == 0:
        here.meet(key, " ".join(hub.engine.addresses)[:1024])
    else:
        at = functools.partial(_ask, here, key)
    title = f"{here.actor:x}/{key}"
    group, rules = join(title, rank, size, at, engine=hub.engine, deadline=deadline)
    return Communicator.of(group, Choice(rules), operation_deadline, deadline)


def _ask(here: context.ActorContext, key: str) -> str:
    """Where rank 0 says that it is, as the owner knows by now."""
    assert here.meet is not None
    here.meet(key, "")
    return meets.wait(here.actor, key, _ASKING).split(" ")[0]


def _place(point: Point, dimensions: tuple[str, ...]) -> tuple[int, int, str]:
    """The rank and size of its group, and which group that is."""
    names = dimensions or tuple(point)
    if len(set(names)) != len(names) or not set(names) <= set(point):
        there = ", ".join(map(repr, point)) or "none"
        raise InvalidUse(f"dimensions are of {there}, each once, not {names!r:.80}")
    rank, size = 0, 1
    for each in names:
        rank, size = rank * point.sizes[each] + point[each], size * point.sizes[each]
    rest = [f"{each}={point[each]}" for each in point if each not in names]
    return rank, size, f"{','.join(names)}/{','.join(rest)}"
