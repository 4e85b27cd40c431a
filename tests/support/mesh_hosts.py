"""What every host of a mesh must do, whoever starts its processes. Imports nothing but the mesh."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from transport.mesh.process import Cause, Start

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
        assert processes[-1].ended.result(PATIENCE) == Cause(signal=signal.SIGKILL)
        assert not any(process.ended.done() for process in processes[:-1])
        (again,) = host.start([Start(size - 1, "actor")])
        assert again.rank == size - 1
        for process in (*processes, again):
            process.stop(PATIENCE)
        assert processes[0].ended.result(0) == again.ended.result(0) == Cause(code=0)
    finally:
        host.close()
