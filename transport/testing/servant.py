"""A process with an engine that does what it is told: the other end in tests.

Run by transport.testing.processes. One request is (method, arguments, keywords), one reply is
(True, value) or (False, exception), both pickled by multiprocessing's Connection.
"""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import os
import select
import signal
import struct
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.engine.engine import Engine

if TYPE_CHECKING:
    from transport.memory.region import Region
    from transport.memory.remote import RemoteRegion


def pattern(seed: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Reproducible bytes; another seed gives other bytes."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


class Servant:
    """What can be asked. Memory has names; a name that is made again replaces the old one."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.requests = -1
        self.arrays: dict[str, Any] = {}
        self.regions: dict[str, Region] = {}

    def pid(self) -> int:
        return os.getpid()

    def open(self, **options: Any) -> tuple[bytes, tuple[str, ...]]:
        """Opens the engine; closes the one before."""
        self.close()
        self.engine = Engine(**options)
        return self.engine.incarnation, self.engine.addresses

    def close(self) -> None:
        self.arrays.clear()
        self.regions.clear()
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def make(
        self,
        name: str,
        nbytes: int,
        *,
        seed: int = 0,
        shape: tuple[int, ...] | None = None,
        dtype: str = "uint8",
        pool: bool = False,
        access: str = "read-write",
    ) -> RemoteRegion:
        """Memory with `pattern(seed)` in it, registered; the handle."""
        dims = (nbytes // np.dtype(dtype).itemsize,) if shape is None else shape
        engine = self._engine()
        array = engine.empty(dims, dtype, access=access) if pool else np.empty(dims, dtype)
        array.reshape(-1).view(np.uint8)[:] = pattern(seed, nbytes)
        self.arrays[name] = array
        self.regions[name] = engine.register(array, access=access)
        return self.regions[name].remote()

    def content(self, name: str) -> bytes:
        """The bytes as they are now."""
        content: bytes = self.arrays[name].tobytes()
        return content

    def digest(self, name: str) -> str:
        """SHA-256 of the bytes as they are now."""
        return hashlib.sha256(self.content(name)).hexdigest()

    def close_region(self, name: str) -> None:
        self.regions.pop(name).close()

    def notifications(self, count: int, timeout: float) -> list[tuple[bytes, str | None]]:
        """The next `count` of them: payload, and the name of the region's memory."""
        names = {id(region): name for name, region in self.regions.items()}
        notes = self._engine().notifications()
        found = [notes.wait(timeout) for _ in range(count)]
        return [(note.payload, names.get(id(note.region))) for note in found]

    def read(self, remote: RemoteRegion, name: str, timeout: float) -> str:
        """Reads into memory of ours; the path."""
        return self._engine().read(remote, self.arrays[name]).wait(timeout).path

    def hold_gil(self, seconds: float) -> None:
        """Sleeps in C with the GIL held, until the next request comes, at most so long: no Python
        of this process runs meanwhile."""
        waits = struct.pack("ihh", self.requests, select.POLLIN, 0)  # struct pollfd
        ctypes.PyDLL(None).poll(ctypes.create_string_buffer(waits), 1, int(seconds * 1e3))

    def run(self, code: str, **values: Any) -> Any:
        """Executes Python text with `servant` and `values`; gives back what it calls `result`."""
        namespace: dict[str, Any] = {"servant": self, **values}
        exec(code, namespace)
        return namespace.get("result")

    def _engine(self) -> Engine:
        assert self.engine is not None, "open() comes first"
        return self.engine


def serve(connection: Connection[Any, Any]) -> None:
    """Answers until the other end closes."""
    servant = Servant()
    servant.requests = connection.fileno()
    while True:
        try:
            method, arguments, keywords = connection.recv()
        except EOFError:
            break
        try:
            reply = True, getattr(servant, method)(*arguments, **keywords)
        except Exception as error:
            reply = False, error
        connection.send(reply)
    servant.close()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # PeerProcess asks so where this one stands
    serve(Connection(int(sys.argv[1])))
