"""Values on their way between two processes. May import types and errors; no torch, no numpy.

A value is pickled (protocol 5, functions and classes by value where their module is `__main__`).
Only processes that have proven themselves get here: what they send is unpickled.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Context:
    """Between whom, and until when. `peer` is a name for errors, `deadline` of time.monotonic."""

    peer: str = ""
    deadline: float = float("inf")


@dataclass(slots=True)
class Payload:
    """What travels. `release` is called once when nobody needs what it refers to any more.

    `held`: whether the receiver must be heard of before that, because it pulls something.
    """

    data: bytes | bytearray | memoryview
    held: bool = False
    release: Callable[[], None] | None = None


def encode(value: Any, context: Context) -> Payload:
    """Raises what pickling it raises."""
    return Payload(cloudpickle.dumps(value, 5))


def decode(payload: Payload, context: Context) -> Any:
    """The value; blocks while something is pulled, up to the context's deadline."""
    return pickle.loads(payload.data)
