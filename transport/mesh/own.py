"""This process as a mesh of one, so that actors can be spawned beside the code that calls them.

May import process_mesh and serve.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import platform
import socket
import threading
from typing import TYPE_CHECKING

from transport.mesh.process import Cause
from transport.mesh.process_mesh import ProcessMesh
from transport.mesh.serve import server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.mesh.process import Process, Start


class OwnProcess:
    """See transport.mesh.process.Process. It does not end with its mesh."""

    rank = 0

    def __init__(self) -> None:
        self.host = platform.node()
        self.pid = os.getpid()
        self.ended: concurrent.futures.Future[Cause] = concurrent.futures.Future()
        self.socket, theirs = socket.socketpair()
        server().adopt(theirs)

    def kill(self) -> None:
        """Ends the mesh alone: its actors run on, for a thread cannot be ended."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.ended.set_result(Cause(text="was given up"))

    def stop(self, timeout: float) -> None:
        self.kill()


class OwnHost:
    """See transport.mesh.process.Host."""

    name = "this process"

    def start(self, ranks: Sequence[Start]) -> Sequence[Process]:
        return [OwnProcess() for _ in ranks]

    def close(self) -> None:
        pass


_own: tuple[int, ProcessMesh] | None = None
_making = threading.Lock()


def this_proc() -> ProcessMesh:
    """The process that runs this code, as a mesh of one without dimensions: actors that are
    spawned on it live here, each in a thread of its own."""
    global _own
    with _making:
        if _own is None or _own[0] != os.getpid() or _own[1].stopped:
            _own = os.getpid(), ProcessMesh.start(OwnHost(), {}, name="this process")
        return _own[1]
