"""What a user writes: a class of actors, and which of its methods others may call. Pure."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from transport.errors import InvalidUse

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from transport.errors import ActorCrashed

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Actor:
    """An object in a process of a mesh. Its endpoints are called one after the other, in the order
    in which each caller sent them; async endpoints begin in that order.

    An actor with an async endpoint has an event loop, in which all its endpoints run; one without
    has a thread.
    """

    def __cleanup__(self, error: BaseException | None) -> Any:
        """Called once when the actor is stopped in good order, in its own thread or loop."""

    def __supervise__(self, failure: ActorCrashed) -> Any:
        """Told when an actor that this one spawned crashed and its mesh's policy gave up.

        True: handled. Anything else passes it on to whoever owns this actor's mesh.
        """
        return False


class EndpointMethod(Generic[S, P, R]):
    """A method that others may call through an ActorMesh; on the object itself it is a method."""

    def __init__(self, function: Callable[Concatenate[S, P], R]) -> None:
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__wrapped__ = function

    @overload
    def __get__(self, instance: None, owner: type[S]) -> Self: ...
    @overload
    def __get__(self, instance: S, owner: type[S]) -> Callable[P, R]: ...
    def __get__(self, instance: S | None, owner: type[S]) -> Self | Callable[P, R]:
        if instance is None:
            return self
        return self.function.__get__(instance, owner)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<endpoint {self.__name__}>"


def endpoint(function: Callable[Concatenate[S, P], R]) -> EndpointMethod[S, P, R]:
    """Marks a method, sync or async, as one that others may call. Raises InvalidUse."""
    if not inspect.isfunction(function):
        raise InvalidUse(f"@endpoint marks a method, not {function!r:.80}")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidUse(f"{function.__name__} is a generator: an endpoint returns one value")
    return EndpointMethod(function)


def endpoints(actor: type[Actor]) -> dict[str, EndpointMethod[Any, Any, Any]]:
    """All of a class, by name. Raises InvalidUse for what is no class of actors."""
    if not _is_actor_class(actor):
        words = "is no subclass of transport.Actor: spawn(name, class, *arguments)"
        raise InvalidUse(f"{actor!r:.80} {words}")
    found = {name: getattr(actor, name, None) for name in dir(actor)}
    return {name: each for name, each in found.items() if isinstance(each, EndpointMethod)}


def _is_actor_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Actor)
