"""Sharded tensors in calls: each rank's part stays where it is until somebody reads what it needs.

May import context, remote_tensor, tensors, values, sharding, errors and types.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from transport.errors import InvalidUse, LayoutError
from transport.mesh.context import current_rank
from transport.mesh.values import ValueMesh
from transport.sharding.layout import Layout
from transport.sharding.state import StateLayout
from transport.types import check_timeout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ONLY = "tensor"  # the name of a tensor that is alone


class Sharded:
    """A tensor, or a state of them, of which each rank of an actor mesh has a part.

    An endpoint returns `Sharded.part(local, layout)`; `Sharded.join` makes one of what all ranks
    returned. Passed to actors, `sharded.to(layout)` arrives as the local tensors that each of them
    has in that layout: it reads what it lacks from those who have it, and nothing goes through the
    caller. Nothing is copied before: what the owners write to their tensors meanwhile is read.
    """

    def __init__(
        self, parts: Mapping[int, Mapping[str, Any]], layout: Layout | StateLayout
    ) -> None:
        """`parts`: rank -> local tensor's name -> tensor, array or RemoteTensor."""
        self.parts = {rank: dict(tensors) for rank, tensors in parts.items()}
        self.layout = layout

    @classmethod
    def part(cls, local: Any, layout: Layout | StateLayout, rank: int | None = None) -> Sharded:
        """What this actor has: a tensor for a Layout, {local name: tensor} for a StateLayout.

        `rank` is its own in the layout; by default its rank in the mesh that it was spawned on.
        Raises LayoutError where the shapes are not those of the layout.
        """
        here = current_rank().rank if rank is None else rank
        tensors = dict(local) if isinstance(layout, StateLayout) else {_ONLY: local}
        _check(tensors, _state(layout), here)
        return cls({here: tensors}, layout)

    @classmethod
    def join(cls, parts: ValueMesh[Sharded] | Iterable[Sharded]) -> Sharded:
        """Of all ranks' parts. Raises LayoutError for parts of different layouts or of one rank."""
        gathered = parts.values() if isinstance(parts, ValueMesh) else list(parts)
        if not gathered:
            raise InvalidUse("there are no parts to join")
        found: dict[int, Mapping[str, Any]] = {}
        for each in gathered:
            _check_part(each)
            if each.layout != gathered[0].layout:
                raise LayoutError("the parts are of different layouts")
            if not found.keys().isdisjoint(each.parts):
                twice = min(found.keys() & each.parts.keys())
                raise LayoutError(
                    f"two parts are of rank {twice}: each actor gives the part of its own rank "
                    "(Sharded.part(..., rank=) where that is not its rank in the mesh)"
                )
            found.update(each.parts)
        return cls(found, gathered[0].layout)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those whose parts it has, sorted."""
        return tuple(sorted(self.parts))

    def to(self, layout: Layout | StateLayout) -> Relaid:
        """For the arguments of a call: arrives as the local tensors of the actor's rank.

        That is its rank in the mesh that it was spawned on, in views of it too. The call raises
        LayoutError, and is not made, where an actor's rank is not in the layout or the layout has
        more ranks than were spawned. Raises LayoutError where one layout is of a state and the
        other is not.
        """
        _check_kinds(self.layout, layout)
        return Relaid(self, layout)

    def fetch(
        self,
        layout: Layout | StateLayout,
        rank: int | None = None,
        into: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """This process's local tensor in another layout: a tensor, or {local name: tensor}.

        `rank` is one of that layout, by default this actor's in its mesh. `into` are tensors that
        are written to; by default new ones of the kind that the parts are. dtypes are converted
        where the layouts differ in them. A part whose owner is lost is read from others that have
        the same. Raises LayoutError for layouts that do not fit each other, and what
        `Execution.run` raises, within `timeout` seconds (default: the setting deadline).
        """
        from transport.mesh.tensors import here
        from transport.sharding.execute import Execution

        limit, own = check_timeout(timeout), current_rank().rank if rank is None else rank
        _check_kinds(self.layout, layout)
        source, target = _state(self.layout), _state(layout)
        _check_rank(own, target)
        local = self._local(here().engine, target, own, into)
        remote = {
            rank: {name: it.handle for name, it in tensors.items()}
            for rank, tensors in self._remote().items()
        }
        without = frozenset(source.ranks) - frozenset(remote)
        if local:
            engine = here().engine
            with Execution(
                engine, source, target, own, remote=remote, local=local, without=without
            ) as execution:
                execution.run(limit)
        return local if isinstance(layout, StateLayout) else local.get(_ONLY)

    def _remote(self) -> dict[int, dict[str, Any]]:
        if any(not hasattr(it, "handle") for part in self.parts.values() for it in part.values()):
            raise InvalidUse("these parts are here, not remote: fetch is for what a call gave")
        return self.parts

    def _local(self, engine: Any, target: StateLayout, rank: int, into: Any) -> dict[str, Any]:
        if into is not None:
            return dict(into) if hasattr(into, "items") else {_ONLY: into}
        first = next((it for part in self.parts.values() for it in part.values()), None)
        numpy = getattr(first, "_kind", "torch") == "numpy"
        made: dict[str, Any] = {}
        for name, (shape, dtype) in target.local_shapes(rank).items():
            made[name] = engine.empty(shape, dtype if numpy else _torch(dtype), access="read")
        return made

    if not TYPE_CHECKING:  # where it would have every attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"a Sharded has no {name!r}: it is no tensor. Whoever calls passes "
                "sharded.to(layout), and the endpoint gets its local tensor; or use "
                "sharded.fetch(layout)"
            )

    def __repr__(self) -> str:
        return f"<Sharded {self.layout!r:.80} of ranks {list(self.ranks)!r:.80}>"


@dataclass(frozen=True, slots=True)
class Relaid:
    """A sharded tensor that arrives in another layout. Made by `Sharded.to`."""

    sharded: Sharded
    layout: Layout | StateLayout


def _state(layout: Layout | StateLayout) -> StateLayout:
    given: Any = layout
    if not isinstance(given, (Layout, StateLayout)):
        raise InvalidUse(f"a layout is a Layout or a StateLayout, not a {type(given).__name__}")
    return layout if isinstance(layout, StateLayout) else StateLayout({_ONLY: layout})


def check_actors(layout: Layout | StateLayout) -> None:
    """That these actors have the ranks of the layout, and this one of them has one.

    Raises LayoutError.
    """
    point = current_rank()
    check_places(layout, (point.rank,), range(math.prod(point.sizes.values())))


def check_places(
    layout: Layout | StateLayout, ranks: Sequence[int], spawned: Sequence[int]
) -> None:
    """That all of these ranks of a mesh, of which those in `spawned` have actors, are in the layout
    by their places in it, and it has no others. Raises LayoutError.
    """
    state, count = _state(layout), len(spawned)
    for rank in ranks:
        _check_rank(spawned.index(rank), state)
    if state.ranks[-1] >= count:
        raise LayoutError(
            f"a layout of {len(state.ranks)} ranks, up to rank {state.ranks[-1]}, for actors that "
            f"were spawned on {count}: what the others should have would go nowhere"
        )


def _check_rank(rank: int, state: StateLayout) -> None:
    if rank not in state.ranks:
        raise LayoutError(
            f"rank {rank} is none of the layout's, which are {list(state.ranks)!r:.80}: ranks are "
            "those of the mesh that the actors were spawned on"
        )


def _check_kinds(source: Layout | StateLayout, target: Layout | StateLayout) -> None:
    if isinstance(source, StateLayout) and isinstance(target, Layout):
        first = next(iter(source), "name")
        raise LayoutError(
            "this is a state of named tensors, not a single one: give a StateLayout, such as "
            f"StateLayout({{{first!r}: layout}})"
        )
    if isinstance(source, Layout) and isinstance(target, StateLayout):
        raise LayoutError("this is a single tensor, not a state: give a Layout, not a StateLayout")


def _check_part(part: Any) -> None:
    if not isinstance(part, Sharded):
        raise InvalidUse(
            f"join takes what Sharded.part made on each rank, not a {type(part).__name__}; "
            "several tensors are one part with a StateLayout, or are joined one by one: "
            "Sharded.join(each['w'] for each in values.values())"
        )


def _check(tensors: Mapping[str, Any], state: StateLayout, rank: int) -> None:
    wanted = {name: shape for name, (shape, _) in state.local_shapes(rank).items()}
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wanted != given:
        raise LayoutError(f"rank {rank} has {wanted!r:.200} in this layout, not {given!r:.200}")


def _torch(dtype: str) -> Any:
    import torch

    return getattr(torch, dtype)
