"""What every host of a mesh must do, whoever starts its processes. Imports pytest and the mesh."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

import transport
from transport.mesh.process import Start

if TYPE_CHECKING:
    from transport.mesh.process import Host

PATIENCE = 60.0


def exercise(host: Host, size: int) -> None:
    """Starts, loses, replaces and stops processes of a host on this machine, and closes it."""
    try:
        processes = host.start([Start(rank, "actor") for rank in range(size)])
        assert [process.rank for process in processes] == list(range(size))
        assert len({process.pid for process in processes}) == size
        os.kill(processes[-1].pid, signal.SIGKILL)
        assert processes[-1].ended.result(PATIENCE).signal == signal.SIGKILL
        assert not any(process.ended.done() for process in processes[:-1])
        (again,) = host.start([Start(size - 1, "actor")])
        assert again.rank == size - 1
        for process in (*processes, again):
            process.stop(PATIENCE)
        assert again.ended.result(0).code == 0
    finally:
        host.close()


class Counter(transport.Actor):
    def __init__(self, start: int) -> None:
        self.count = start

    @transport.endpoint
    def add(self, more: int) -> tuple[int, int]:
        self.count += more
        return transport.current_rank()["rank"], self.count

    @transport.endpoint
    def leave(self, code: int) -> None:
        os._exit(code)


def count_on(on: str, **options: object) -> None:
    """The same program wherever the processes are."""
    with transport.processes(2, on=on, host=options) as mesh:  # type: ignore[arg-type]
        counters = mesh.spawn("counter", Counter, 3)
        assert counters.add.call(4).get(PATIENCE).values() == [(0, 7), (1, 7)]
        last = counters.slice(rank=1)
        assert last.add.call_one(1).get(PATIENCE) == (1, 8)
        with pytest.raises(transport.ActorCrashed, match="exit code 7"):
            last.leave.call_one(7).get(PATIENCE)
        assert counters.slice(rank=0).add.call_one(1).get(PATIENCE) == (0, 8)
        mesh.replace(1)
        assert counters.add.call(1).get(PATIENCE).values() == [(0, 9), (1, 4)]
