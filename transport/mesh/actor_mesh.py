"""Actors of one class, one in each process of a mesh. May import call, shape, team."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.mesh.call import Endpoint
from transport.mesh.directory import team as find_team
from transport.mesh.shape import Shape

if TYPE_CHECKING:
    from transport.mesh.team import Team


class ActorMesh:
    """`mesh.step` is the endpoint `step` of all its actors; views have the same actors.

    It can be passed to other actors, which then call these actors directly.
    """

    def __init__(
        self,
        team: Team,
        shape: Shape,
        actor: int,
        name: str,
        methods: frozenset[str],
        spawned: tuple[int, ...] | None = None,
        held: object = None,
    ) -> None:
        """`spawned`: ranks of all that were made together; of this shape where it is not given.
        `held` is kept.
        """
        self._team = team
        self._shape = shape
        self._actor = actor
        self._name = name
        self._methods = methods
        self._spawned = shape.ranks if spawned is None else spawned
        self._held = held

    def __getattr__(self, method: str) -> Endpoint[Any]:
        if method.startswith("__") or method not in self.__dict__.get("_methods", ()):
            methods = ", ".join(sorted(self.__dict__.get("_methods", ())))
            there = f"there are: {methods}" if methods else "none of their methods has @endpoint"
            raise AttributeError(f"{method!r} is no endpoint of these actors; {there}")
        team, shape, spawned = self._team, self._shape, self._spawned
        return Endpoint(team, shape, self._actor, self._name, method, spawned=spawned)

    @property
    def number(self) -> int:
        """Which they are among all actors of their processes."""
        return self._actor

    @property
    def name(self) -> str:
        """As given to spawn."""
        return self._name

    @property
    def sizes(self) -> dict[str, int]:
        """Of each dimension, by name."""
        return dict(self._shape.sizes)

    def size(self, *names: str) -> int:
        """How many actors along these dimensions; all of them without a name."""
        return self._shape.size(*names)

    def __len__(self) -> int:
        return len(self._shape)

    def slice(self, **picks: int | slice) -> ActorMesh:
        """Some of the actors: a number drops its dimension, a slice keeps it."""
        return self._view(self._shape.slice(**picks))

    def flatten(self, name: str) -> ActorMesh:
        """The same actors in one dimension, in row-major order."""
        return self._view(self._shape.flatten(name))

    def rename(self, **names: str) -> ActorMesh:
        """`rename(old="new")`."""
        return self._view(self._shape.rename(**names))

    def split(self, name: str, **sizes: int) -> ActorMesh:
        """`split("rank", replica=2, shard=4)`: one dimension becomes several."""
        return self._view(self._shape.split(name, **sizes))

    def _view(self, shape: Shape) -> ActorMesh:
        team, spawned = self._team, self._spawned
        actor, name, methods = self._actor, self._name, self._methods
        return ActorMesh(team, shape, actor, name, methods, spawned, self._held)

    def __reduce__(self) -> tuple[Any, ...]:
        team = self._team
        doors = {rank: team.door(rank) for rank in self._shape.ranks}
        shape, spawned = (self._shape.sizes, self._shape.ranks), self._spawned
        about = shape, self._actor, self._name, self._methods, spawned
        return _found, (team.id, team.name, doors, *about)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._methods})

    def __repr__(self) -> str:
        return f"<ActorMesh {self._name}: {self._shape.describe()}>"


def _found(
    mesh: bytes,
    team_name: str,
    doors: dict[int, str],
    shape: tuple[dict[str, int], tuple[int, ...]],
    actor: int,
    name: str,
    methods: frozenset[str],
    spawned: tuple[int, ...],
) -> ActorMesh:
    """What travelled; calls from here go straight to the actors."""
    team = find_team(mesh, team_name, doors)
    return ActorMesh(team, Shape(*shape), actor, name, methods, spawned)
