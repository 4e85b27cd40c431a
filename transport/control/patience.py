"""Waiting with a limit that never loses a cancellation. Imports the standard library only.

`asyncio.wait_for` before Python 3.12 forgets a cancellation that comes in the same turn of the loop
as the result (python/cpython issue 86296): the task then goes on, and whoever cancelled it waits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

_T = TypeVar("_T")


async def within(seconds: float, awaitable: Awaitable[_T]) -> _T:
    """Its result. After `seconds` it is cancelled, and asyncio.TimeoutError raised."""
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait((task,), timeout=max(seconds, 0.0))
    except asyncio.CancelledError:
        await _give_up(task)
        raise
    if not done:
        await _give_up(task)
        raise asyncio.TimeoutError
    try:
        return task.result()
    finally:  # what it raises holds this frame, which must not hold the task that has the error
        del task, done


async def _give_up(task: asyncio.Future[_T]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
