"""Which providers there are: ours, listed literally, and the entry points ``transport.providers``.

May import base, and a built-in provider when it is first asked for. An entry point names an object
that meets base.Provider, or a callable without arguments that returns one.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, Unavailable
from transport.providers.base import Provider

if TYPE_CHECKING:
    from collections.abc import Container

GROUP = "transport.providers"

# Name -> module and attribute; in the order in which they are wanted by default.
BUILT_IN = {
    "gpu_ipc": ("transport.providers.gpu_ipc", "PROVIDER"),
    "shm": ("transport.providers.shm", "PROVIDER"),
    "verbs": ("transport.providers.verbs", "PROVIDER"),
    "tcp": ("transport.providers.tcp", "PROVIDER"),
    "staged": ("transport.providers.staged", "PROVIDER"),
}

FIRST_FOREIGN = 5
IDENTIFIERS = 10


def names() -> tuple[str, ...]:
    """All known providers; nothing is loaded."""
    foreign = {entry.name for entry in entry_points(group=GROUP)}
    return (*BUILT_IN, *sorted(foreign - BUILT_IN.keys()))


def left_out(used: Container[str]) -> dict[str, str]:
    """The built-in providers that an engine was told to do without, each with these words."""
    why = "providers= or TRANSPORT_PROVIDERS of this engine leaves it out"
    return {name: why for name in BUILT_IN if name not in used}


def find(name: str) -> Provider:
    """Raises InvalidUse when there is none of that name, Unavailable when it cannot be loaded."""
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name]
        return _checked(name, getattr(importlib.import_module(module), attribute))
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return _foreign(name, entry)
    raise InvalidUse(f"there is no provider named {name!r}; known are {', '.join(names())}")


def _foreign(name: str, entry: Any) -> Provider:
    try:
        provider: Any = entry.load()
        # A class has the attributes of its instances and so looks like a provider itself.
        if isinstance(provider, type) or not isinstance(provider, Provider):
            provider = provider()
    except Exception as error:  # whatever a third party's import may raise
        reason = f"provider {name!r} ({entry.value}) cannot be loaded: {error}"
        raise Unavailable(reason, "install a version of it that fits this library") from error
    checked = _checked(name, provider)
    if not FIRST_FOREIGN <= checked.identifier < IDENTIFIERS:
        reason = f"provider {name!r} has identifier {checked.identifier}"
        raise Unavailable(reason, f"third parties take {FIRST_FOREIGN} to {IDENTIFIERS - 1}")
    return checked


def _checked(name: str, provider: object) -> Provider:
    if not isinstance(provider, Provider) or provider.name != name:
        raise Unavailable(
            f"what is registered as provider {name!r} is not one", "see transport.providers.base"
        )
    return provider
