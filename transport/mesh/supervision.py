"""What is done when a process of a mesh ends, or an actor breaks: by policy, else by who is above.

May import context, failure, shape's neighbours below it and errors. Every crash is handled on a
thread of its own, so that neither links nor other ranks wait for a back-off.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from transport.errors import ActorCrashed, InvalidUse, TransportError
from transport.mesh import context

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

Action: TypeAlias = Literal["restart", "replace", "escalate"]

_NOTICE = 1.0  # seconds for the program to notice a failure by itself
_ACTIONS = ("restart", "replace", "escalate")


@dataclass(frozen=True, slots=True)
class Policy:
    """What is done about a rank that crashed.

    `restart`: its actors are made anew, in its process if that lives, else in a new one. `replace`:
    always in a new process. `escalate`: nothing; whoever is above is told. A rank that needs it
    more than `limit` times within `window` seconds is escalated, too. Before the second time within
    the window there is a pause of `backoff` seconds, then twice as long each time, up to
    `longest`. Actors are made with the arguments that were given to spawn: what they held is gone.
    """

    action: Action = "escalate"
    limit: int = 3
    window: float = 60.0
    backoff: float = 0.1
    longest: float = 10.0

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise InvalidUse(f"a policy is one of {', '.join(_ACTIONS)}, not {self.action!r}")
        if self.limit < 0 or min(self.window, self.backoff, self.longest) < 0:
            raise InvalidUse("limit, window, backoff and longest of a policy are not negative")

    def pause(self, times: int) -> float:
        """Before the next, after so many within the window."""
        return min(self.backoff * 2.0 ** (times - 1), self.longest) if times else 0.0


def policy_of(policy: Policy | Action) -> Policy:
    """Raises InvalidUse."""
    return policy if isinstance(policy, Policy) else Policy(policy)


class Patient(Protocol):
    """What is supervised."""

    @property
    def stopped(self) -> bool: ...

    def replace(self, rank: int) -> None:
        """A new process for this rank."""

    def renew(self, rank: int, actor: int) -> None:
        """This actor anew, in the process that there is."""


class Supervisor:
    """Of one mesh. `hook` is told what no policy handled: True means handled."""

    def __init__(
        self, mesh: Patient, policy: Policy, hook: Callable[[ActorCrashed], Any] | None
    ) -> None:
        self._mesh = mesh
        self._policy = policy
        self._hook = hook
        self._above = context.current()  # the actor that makes this mesh
        self._times: dict[int, collections.deque[float]] = {}
        self._stop = threading.Event()

    def close(self) -> None:
        self._stop.set()

    def crashed(
        self,
        crash: ActorCrashed,
        actor: int | None = None,
        *,
        known: Callable[[], bool] = lambda: False,
    ) -> None:
        """From any thread, at once. `actor`: the only one that broke, where its process lives.
        `known`: whether somebody knows: a call has failed with it, or the rank was replaced."""
        threading.Thread(
            target=self._handle, args=(crash, actor, known), name="supervisor", daemon=True
        ).start()

    def _handle(self, crash: ActorCrashed, actor: int | None, known: Callable[[], bool]) -> None:
        rank = crash.rank if crash.rank is not None else 0
        while self._policy.action != "escalate" and self._allowed(rank):
            if self._stop.is_set() or self._mesh.stopped:
                return
            try:
                self._act(rank, actor)
            except TransportError as error:
                if not self._stop.is_set():
                    logger.warning("rank %d could not be brought back: %s", rank, error)
                actor = None
            else:
                logger.warning("%s; it was brought back", crash.args[0])
                return
        if not self._mesh.stopped:
            self._escalate(crash, known)

    def _act(self, rank: int, actor: int | None) -> None:
        if actor is not None and self._policy.action == "restart":
            self._mesh.renew(rank, actor)
        else:
            self._mesh.replace(rank)

    def _allowed(self, rank: int) -> bool:
        """Whether it may be tried again; after the pause."""
        times = self._times.setdefault(rank, collections.deque())
        now = time.monotonic()
        while times and times[0] < now - self._policy.window:
            times.popleft()
        if len(times) >= self._policy.limit:
            return False
        self._stop.wait(self._policy.pause(len(times)))
        times.append(time.monotonic())
        return True

    def _escalate(self, crash: ActorCrashed, known: Callable[[], bool]) -> None:
        if self._hook is not None:
            try:
                if self._hook(crash):
                    return
            except Exception:
                logger.exception("the hook for failures failed itself")
        if self._above is not None and self._above.supervise is not None:
            self._above.supervise(crash)
            return
        if not known():
            self._stop.wait(_NOTICE)
        level = logging.INFO if known() else logging.ERROR
        logger.log(level, "nobody handled a failure: %s", crash, exc_info=crash.__cause__)
