"""Waiting for what another thread, process or kernel does. May import the standard library."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def until(
    condition: Callable[[], _T],
    what: str | Callable[[], str] = "it never became true",
    seconds: float = 90.0,
) -> _T:
    """The condition's first value that is true; fails with `what` where there is none in time."""
    end, pause = time.monotonic() + seconds, 0.001
    while not (value := condition()):
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return value
