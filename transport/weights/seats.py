"""Where readers say what they are reading: a word for each, in the publisher's memory.

May import engine, control, memory and errors. A hazard pointer (Michael, IEEE TPDS 15(6), 2004): a
reader writes the version that it is about to read into its seat and then looks again whether it is
still there; a publisher closes the version and then looks at the seats. It is a courtesy, so that
slow readers need not begin again: what a reader has got is judged by the version word alone.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from transport.control.records import State as PeerState
from transport.errors import TransportError

if TYPE_CHECKING:
    from transport.control.records import PeerRecord
    from transport.engine.engine import Engine
    from transport.memory.remote import RemoteRegion

MAX_READERS = 4096
_PAUSES = (50e-6, 2e-3)  # seconds between looks at the seats: the first, and what they grow to


def said(version: int) -> int:
    """What a reader of this version writes into its seat; 0 is that it reads nothing."""
    return version + 1


class Seats:
    """The readers of one publication. Thread-safe."""

    def __init__(self, engine: Engine, count: int = MAX_READERS) -> None:
        self._words: Any = engine.empty(count, "uint64")
        self._words[:] = 0
        self._region = engine.register(self._words)
        self._remote = self._region.remote()
        self._lock = threading.Lock()
        self._taken: dict[bytes, tuple[int, PeerRecord]] = {}  # by the reader's own id
        self._free = list(range(count - 1, -1, -1))

    def take(self, reader: bytes, record: PeerRecord) -> RemoteRegion:
        """The seat of a reader, which has it until it leaves or its peer is lost."""
        with self._lock:
            self._clear_the_dead()
            known = self._taken.pop(reader, None)
            if known is None and not self._free:
                raise TransportError(f"{len(self._taken)} readers are as many as there can be")
            seat = self._free.pop() if known is None else known[0]
            self._taken[reader] = seat, record
        return self._remote[seat : seat + 1]

    def leave(self, reader: bytes, record: PeerRecord) -> None:
        with self._lock:
            known = self._taken.get(reader)
            if known is not None and known[1].incarnation == record.incarnation:
                self._release(reader)

    def reading(self, version: int) -> int:
        """How many living readers say that they read it."""
        with self._lock:
            self._clear_the_dead()
            taken = [int(self._words[seat]) for seat, _ in self._taken.values()]
        return taken.count(said(version))

    def wait(self, version: int, timeout: float) -> bool:
        """Until nobody reads it. False: somebody still does after `timeout` seconds."""
        end, pause = time.monotonic() + timeout, _PAUSES[0]
        while self.reading(version):
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _PAUSES[1])
        return True

    def __len__(self) -> int:
        with self._lock:
            self._clear_the_dead()
            return len(self._taken)

    def close(self) -> None:
        self._region.close()
        with self._lock:
            self._taken.clear()
            self._free.clear()
            self._words = None

    def _clear_the_dead(self) -> None:
        dead = [r for r, (_, record) in self._taken.items() if record.state is PeerState.LOST]
        for reader in dead:
            self._release(reader)

    def _release(self, reader: bytes) -> None:
        seat, _ = self._taken.pop(reader)
        self._words[seat] = 0
        self._free.append(seat)
