"""Processes on this machine: a fresh interpreter each, with one end of a socket pair.

May import process; never forks without exec.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import platform
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from transport.mesh.process import Cause, Process, Start

if TYPE_CHECKING:
    from collections.abc import Sequence


class LocalProcess:
    """A child of this process."""

    def __init__(self, start: Start) -> None:
        self.rank = start.rank
        self.host = platform.node()
        self.ended: concurrent.futures.Future[Cause] = concurrent.futures.Future()
        self.socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "transport.mesh.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **start.environment},
                stdin=subprocess.DEVNULL,
            )
        self.pid = self._process.pid
        threading.Thread(target=self._watch, name=f"watch {self.pid}", daemon=True).start()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def stop(self, timeout: float) -> None:
        self.socket.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def _watch(self) -> None:
        code = self._process.wait()
        cause = Cause(signal=-code) if code < 0 else Cause(code=code)
        self.ended.set_result(cause)


class LocalHost:
    """This machine."""

    name = "local"

    def start(self, ranks: Sequence[Start]) -> Sequence[Process]:
        return [LocalProcess(start) for start in ranks]

    def close(self) -> None:
        pass
