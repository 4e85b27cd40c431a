"""Where the running code is: which actor of which mesh. May import shape.

Set for the thread of a sync actor, and for each task of an async one.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transport.mesh.shape import Point

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.errors import ActorCrashed


@dataclass(frozen=True, slots=True)
class ActorContext:
    """An actor that runs here."""

    name: str  # as given to spawn
    point: Point
    actor: int = 0  # its number
    instance: Any = field(default=None, repr=False)
    door: str = ""  # of its process
    thread: int = 0  # that runs its endpoints
    supervise: Callable[[ActorCrashed], None] | None = field(default=None, repr=False)
    meet: Callable[[str, str], None] | None = field(default=None, repr=False)
    """Tells the owner where a group meets (key and place), or asks it ("")."""


_current: ContextVar[ActorContext | None] = ContextVar("transport_actor", default=None)


def enter(context: ActorContext) -> None:
    """The running thread, or task, is this actor's from now on."""
    _current.set(context)


def current() -> ActorContext | None:
    """The actor that runs this code; None outside of one."""
    return _current.get()


def current_rank() -> Point:
    """Where this actor is in the mesh it was spawned on: coordinates by dimension name, `.rank` in
    row-major order, `.sizes`. Outside of an actor a point without dimensions."""
    context = _current.get()
    return context.point if context is not None else Point(0, {})
