"""Waiting for a value: never consumes it, from any thread, in any event loop or none."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import weakref

import pytest
from patience import until
from possessions import uncollected

from transport import ActorCrashed, Future, InvalidUse
from transport.mesh.future import Failed
from transport.mesh.shape import Shape
from transport.mesh.stream import Stream


class Came:
    """A reply with a value; `dropped` tells whether anybody was told that it is not needed."""

    failed = False

    def __init__(self, value, heavy=False):
        self.heavy = heavy
        self.dropped = False
        self._value = value

    def value(self):
        return self._value

    def drop(self):
        self.dropped = True


def test_a_timeout_leaves_it_as_it_was():
    future = Future(1, sum)
    with pytest.raises(TimeoutError):
        future.get(0.01)
    with pytest.raises(TimeoutError):
        future.exception(0.0)
    future.settle(0, Came(3))
    assert future.done()
    assert [future.get(), future.get(0), future.exception()] == [3, 3, None]


@pytest.mark.parametrize("timeout", ["1", float("nan"), b""])
def test_a_timeout_is_a_number(timeout):
    with pytest.raises(InvalidUse):
        Future(1, sum).get(timeout)


def test_many_threads_may_wait():
    future = Future(2, list)
    got = []
    threads = [threading.Thread(target=lambda: got.append(future.get(30))) for _ in range(4)]
    for thread in threads:
        thread.start()
    future.settle(1, Came("b"))
    future.settle(0, Came("a"))
    for thread in threads:
        thread.join(30)
    assert got == [["a", "b"]] * 4


def test_the_first_that_fails_ends_it_and_the_others_are_let_go():
    future, other, late = Future(3, list), Came(1), Came(2)
    future.settle(0, other)
    future.settle(1, Failed(ValueError("no")))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            future.get(30)
    future.settle(2, late)
    assert other.dropped
    assert late.dropped
    assert isinstance(future.exception(), ValueError)


def test_the_first_reply_of_a_member_counts():
    future = Future(1, list)
    future.settle(0, Came(1))
    future.settle(0, Came(2))
    assert future.get(30) == [1]


def test_what_nobody_asked_for_is_let_go():
    future, reply = Future(1, list), Came(1, heavy=True)
    future.settle(0, reply)
    del future
    assert reply.dropped


def test_its_own_deadline_ends_it():
    asked = []

    def overdue():
        asked.append(True)
        future.settle(0, Failed(RuntimeError("over")))

    future = Future(1, list, time.monotonic() + 0.01, overdue)
    with pytest.raises(RuntimeError, match="over"):
        future.get(30)
    assert asked


@pytest.mark.parametrize("heavy", [False, True])
def test_await(heavy):
    async def main():
        future = Future(1, sum)
        timer = threading.Timer(0.01, future.settle, (0, Came(5, heavy)))
        timer.start()
        assert await asyncio.gather(future, future) == [5, 5]
        assert await future == 5

    asyncio.run(main())


def test_a_cancelled_task_leaves_it():
    async def main():
        future = Future(1, sum)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(_waits(future)), 0.01)
        future.settle(0, Came(7))
        return await future

    assert asyncio.run(main()) == 7


async def _waits(future):
    return await future


def test_await_without_a_loop():
    future = Future(1, sum)
    future.settle(0, Came(5))
    with pytest.raises(StopIteration) as stopped:
        _waits(future).send(None)
    assert stopped.value.value == 5


def test_a_stream_gives_them_as_they_come():
    stream = Stream(Shape({"rank": 3}), float("inf"), lambda: None)
    finished = []
    stream.finished = lambda: finished.append(True)
    stream.settle(2, Came("c"))
    stream.settle(0, Failed(KeyError("a")))
    stream.settle(1, Came("b"))
    first, second, third = stream
    assert first.get() == "c"
    with pytest.raises(KeyError):
        second.get()
    assert third.get() == "b"
    assert finished == [True]
    assert len(stream) == 3


def test_who_asked_for_a_failure_is_not_kept_by_it():
    class Thing:
        """Can be watched as it goes."""

    def ask():
        thing, future = Thing(), Future(1, lambda values: values)
        seen.append(weakref.ref(thing))
        future.settle(0, Failed(ActorCrashed("gone", rank=3, cause="killed")))
        error = future.exception(1)
        assert (error.rank, error.cause) == (3, "killed")
        future.get(1)

    seen = []
    with uncollected():
        with pytest.raises(ActorCrashed, match="gone"):
            ask()
        assert seen[0]() is None


def test_ctrl_c_while_a_loop_is_told_loses_it_not():
    """The same reply comes once more then (link.py)."""
    future, got = Future(1, sum), []

    async def wait():
        got.append(await future)

    def strike(frame, event, _):
        if event == "call" and frame.f_code.co_name == "call_soon_threadsafe":
            sys.setprofile(None)
            raise KeyboardInterrupt

    thread = threading.Thread(target=lambda: asyncio.run(wait()), daemon=True)
    thread.start()
    until(lambda: future._watchers)
    sys.setprofile(strike)
    try:
        with pytest.raises(KeyboardInterrupt):
            future.settle(0, Came(3))
    finally:
        sys.setprofile(None)
    future.settle(0, Came(3))
    thread.join(30)
    assert got == [3]
