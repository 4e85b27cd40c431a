"""Actors, values and exceptions that do what nobody expects, for tests of the mesh."""

from __future__ import annotations

import asyncio
import sys

from transport import Actor, current_rank, endpoint

KINDS = {
    "interrupt": KeyboardInterrupt,
    "close": GeneratorExit,
    "exit": SystemExit,
    "surrogate": lambda: ValueError("file \udcff not found"),
    "wordless": lambda: Wordless(ValueError),
    "wordless interrupt": lambda: Wordless(KeyboardInterrupt),
    "chained": lambda: chained(),
    "large": lambda: Large(),
}
ODD = [kind for kind in KINDS if kind != "exit"]


class Wordless(Exception):
    def __init__(self, kind):
        super().__init__(kind)
        self.kind = kind

    def __str__(self):
        raise self.kind


class Large(Exception):
    """Larger than an exception that is sent whole."""

    def __init__(self):
        super().__init__("large")
        self.data = bytes(65 << 20)


def chained():
    error = Wordless(KeyboardInterrupt)
    error.__cause__ = ValueError("\udcff")
    return error


class Odd:
    """Raises when it is pickled or unpickled."""

    def __init__(self, when, kind):
        self.when, self.kind = when, kind

    def __reduce__(self):
        if self.when == "pickled":
            raise KINDS[self.kind]()
        return fail, (self.kind,)


class Undecided:
    def __bool__(self):
        raise ValueError("neither")


def fail(kind):
    raise KINDS[kind]()


class Plain(Actor):
    def __init__(self, kind="", only=None):
        if kind and only in (None, current_rank().rank):
            fail(kind)

    @endpoint
    def fail(self, kind):
        fail(kind)

    @endpoint
    def result(self, when, kind):
        return Odd(when, kind)

    @endpoint
    def works(self):
        return True

    @endpoint
    def exit(self):
        sys.exit(3)

    def __supervise__(self, failure):
        return Undecided()


class Async(Plain):
    @endpoint
    async def fail_async(self, kind):
        fail(kind)

    @endpoint
    async def result_async(self, when, kind):
        return Odd(when, kind)

    @endpoint
    async def fail_in_a_task(self, kind):
        async def task():
            fail(kind)

        await asyncio.gather(task(), asyncio.Event().wait())

    @endpoint
    async def stop_the_loop(self):
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()
