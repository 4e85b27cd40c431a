"""Processes with named dimensions, in which actors are spawned.

May import processes and actor_mesh.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

from transport.config import Settings
from transport.errors import InvalidUse, OutOfRange
from transport.mesh.actor import endpoints
from transport.mesh.actor_mesh import ActorMesh
from transport.mesh.processes import Processes
from transport.mesh.shape import Shape
from transport.mesh.supervision import policy_of
from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal

    from transport.errors import ActorCrashed
    from transport.mesh.actor import Actor
    from transport.mesh.process import Host
    from transport.mesh.supervision import Policy

logger = logging.getLogger(__name__)

_HASTE = 2.0  # seconds for processes to end by themselves after Ctrl-C


class Held:
    """What all views of a mesh and of its actors have; gone, when nobody can use it any more."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def __del__(self) -> None:
        if self._processes.runs:
            text = f"the mesh {self._processes.name} was dropped without stop(): it runs on"
            warnings.warn(text, ResourceWarning, stacklevel=1, source=self)


class ProcessMesh(Closing):
    """Processes that this one owns. They end with it, and with `stop` or the end of `with`.

    One that is dropped without either is a ResourceWarning, and ends with the program.
    """

    def __init__(self, processes: Processes, shape: Shape, held: Held | None = None) -> None:
        self._processes = processes
        self._shape = shape
        self._held = held or Held(processes)

    @classmethod
    def start(
        cls,
        host: Host,
        sizes: Mapping[str, int],
        *,
        name: str = "mesh",
        settings: Settings | None = None,
    ) -> ProcessMesh:
        """Starts as many processes as the sizes say; returns when all serve.

        `settings` hold for the mesh and, but for secrets, for its processes: what differs from the
        defaults is in their environment.
        Raises Unavailable, or ActorCrashed for a process that ended instead.
        """
        shape = Shape(sizes)
        processes = Processes(host, name, shape, settings or Settings.from_env())
        processes.start()
        return cls(processes, shape)

    def spawn(self, name: str, actor: type[Actor], /, *args: Any, **kwargs: Any) -> ActorMesh:
        """One actor in each process; returns when all are made. Raises what making one raised
        (ActorError) or ActorCrashed; those that were made are discarded then."""
        if not name:
            raise InvalidUse("actors have a name, for errors and logs")
        methods = frozenset(endpoints(actor))
        hidden = methods.intersection(dir(ActorMesh))
        if hidden:
            raise InvalidUse(
                f"an endpoint named {min(hidden)!r} would be hidden by ActorMesh's own"
            )
        number = self._processes.spawn(self._shape, name, actor, args, kwargs)
        return ActorMesh(self._processes, self._shape, number, name, methods, held=self._held)

    def discard(self, actors: ActorMesh) -> None:
        """Lets these actors clean up and go, in all their processes; calls to them fail then."""
        self._processes.discard(actors.number)

    @property
    def name(self) -> str:
        return self._processes.name

    @property
    def sizes(self) -> dict[str, int]:
        """Of each dimension, by name."""
        return dict(self._shape.sizes)

    def size(self, *names: str) -> int:
        """How many processes along these dimensions; all of them without a name."""
        return self._shape.size(*names)

    def __len__(self) -> int:
        return len(self._shape)

    def slice(self, **picks: int | slice) -> ProcessMesh:
        """Some of the processes: a number drops its dimension, a slice keeps it."""
        return self._view(self._shape.slice(**picks))

    def flatten(self, name: str) -> ProcessMesh:
        """The same processes in one dimension, in row-major order."""
        return self._view(self._shape.flatten(name))

    def rename(self, **names: str) -> ProcessMesh:
        """`rename(old="new")`."""
        return self._view(self._shape.rename(**names))

    def split(self, name: str, **sizes: int) -> ProcessMesh:
        """`split("rank", replica=2, shard=4)`: one dimension becomes several."""
        return self._view(self._shape.split(name, **sizes))

    def _view(self, shape: Shape) -> ProcessMesh:
        return ProcessMesh(self._processes, shape, self._held)

    def supervise(
        self,
        policy: Policy | Literal["restart", "replace", "escalate"] = "escalate",
        on_failure: Callable[[ActorCrashed], Any] | None = None,
    ) -> ProcessMesh:
        """What is done when a process ends or an actor breaks, for all views. Returns the mesh.

        What the policy does not bring back is given to `on_failure`, on a thread of its own; if
        that is not there or does not return True, to `__supervise__` of the actor that made the
        mesh, and so on upward. What nobody handles is logged. Calls that need the rank fail either
        way until it is back.
        """
        self._processes.supervise(policy_of(policy), on_failure)
        return self

    def replace(self, rank: int) -> None:
        """A new process takes this rank (`ActorCrashed.rank`), and its actors are made again with
        the arguments given to spawn. Every handle then means the new one; a process that lives is
        killed. Raises Unavailable, ActorCrashed, or ActorError for an actor that cannot be made.
        """
        if rank not in self._shape.ranks:
            raise OutOfRange(f"rank {rank} is none of {self._shape.ranks}")
        self._processes.replace(rank)

    @property
    def crashed(self) -> dict[int, ActorCrashed]:
        """What became of the ranks of this view that have crashed and are not back."""
        found = {rank: self._processes.member(rank).crash for rank in self._shape.ranks}
        return {rank: crash for rank, crash in found.items() if crash is not None}

    @property
    def stopped(self) -> bool:
        return self._processes.stopped

    def stop(self, timeout: float = 10.0) -> None:
        """Actors clean up and all processes of the mesh end, those of other views too; one that
        has not after `timeout` seconds is killed. Idempotent."""
        self._processes.stop(timeout)

    close = stop

    def __exit__(self, *raised: object) -> None:
        if raised[:1] != (KeyboardInterrupt,):
            self.stop()
            return
        text = "interrupted: actors of %s have %g s to clean up; interrupt again to kill them"
        logger.warning(text, self.name, _HASTE)
        self.stop(_HASTE)

    def __reduce__(self) -> str:
        raise TypeError("a ProcessMesh stays with its owner; pass the actors spawned on it")

    def __repr__(self) -> str:
        state = " (stopped)" if self.stopped else ""
        return f"<ProcessMesh {self.name}: {self._shape.describe()}{state}>"
