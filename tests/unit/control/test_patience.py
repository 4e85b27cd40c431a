"""A limit on a wait loses neither results nor cancellations."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from transport.control.patience import within


def test_result_and_error():
    async def give(value):
        await asyncio.sleep(0)
        if isinstance(value, Exception):
            raise value
        return value

    assert asyncio.run(within(5.0, give(7))) == 7
    with pytest.raises(KeyError):
        asyncio.run(within(5.0, give(KeyError())))


def test_the_limit_cancels():
    ended = []

    async def endless():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(within(0.01, endless()))
    assert ended == [True]


@pytest.mark.parametrize("error", [None, OSError("refused")])
def test_a_cancellation_together_with_the_end_is_a_cancellation(error):
    async def scene():
        inner = asyncio.get_running_loop().create_future()
        went_on = []

        async def outer():
            with contextlib.suppress(OSError):
                await within(60.0, inner)
            went_on.append(True)

        task = asyncio.create_task(outer())
        await asyncio.sleep(0)
        if error is None:
            inner.set_result(1)
        else:
            inner.set_exception(error)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled(), went_on

    assert asyncio.run(scene()) == (True, [])


def test_a_cancellation_reaches_what_is_waited_for():
    async def scene():
        inner = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(within(60.0, inner))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled(), inner.cancelled()

    assert asyncio.run(scene()) == (True, True)
