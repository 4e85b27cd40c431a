"""The second process of the micro-benchmarks: owns a region and sleeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import transport
from transport.cli import child

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SIZE = 4096
BLOCKS = 1000


def own(pipe: Connection, secret: bytes) -> None:
    with transport.Engine(name="owner", secret=secret) as engine:
        memory = engine.empty((BLOCKS, SIZE), "uint8")
        memory[:] = 1
        with engine.register(memory) as region:
            child.serve(pipe, {"remote": region.remote})
