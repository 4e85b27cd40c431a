"""The child of tests/unit/cli/test_child.py; here because a spawned process must import it."""

from __future__ import annotations

import os

from transport.cli.child import serve
from transport.errors import InvalidUse


def answering(pipe, factor):
    def invalid():
        raise InvalidUse("not like this")

    def crash():
        os._exit(3)

    serve(
        pipe,
        {
            "times": lambda number: number * factor,
            "invalid": invalid,
            "bug": lambda: 1 // 0,
            "crash": crash,
        },
    )
