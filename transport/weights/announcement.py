"""One rank's part of a publication as readers find it: layout, card and words in registered memory.

May import engine, memory, ffi, sharding and errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transport.ffi import ffi, lib
from transport.weights import card, word
from transport.weights.seats import Seats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transport.control.records import PeerRecord
    from transport.engine.engine import Engine
    from transport.memory.region import Region
    from transport.memory.remote import RemoteRegion
    from transport.sharding.state import StateLayout
    from transport.weights.word import State


class Announcement:
    """Made once; later versions only change a word. Closed by its publication."""

    def __init__(
        self,
        engine: Engine,
        layout: StateLayout,
        slots: Sequence[Mapping[str, RemoteRegion]],
    ) -> None:
        self._regions: list[Region] = []
        self._words: Any = engine.empty(len(slots), "uint64", access="read")
        self._words[:] = word.EMPTY
        self._address = self._words.ctypes.data
        try:
            self._word_handle = self._register(engine, self._words).to_bytes()
            self._layout_key = layout.key
            self._layout = self._blob(engine, layout.encode()).to_bytes()
            self._card = self._blob(engine, card.write_card(slots)).to_bytes()
            self.seats = Seats(engine)
        except BaseException:
            self._close_regions()
            raise

    def say(self, slot: int, version: int, state: State) -> None:
        """Readers see it at once: all that was written before, nothing that is written after."""
        words = self._words  # held until it is written: another thread may close this meanwhile
        if words is not None:
            pointer = ffi.cast("void *", self._address + 8 * slot)
            lib.tn_word_store(pointer, word.encode(version, state))

    def part(self, rank: int, reader: bytes, record: PeerRecord) -> card.Part:
        """What one reader is told. Raises TransportError when there are too many."""
        seat = self.seats.take(reader, record).to_bytes()
        return card.Part(rank, self._layout_key, self._layout, self._card, self._word_handle, seat)

    def close(self) -> None:
        self._close_regions()
        self._words = None
        self.seats.close()

    def _blob(self, engine: Engine, data: bytes) -> RemoteRegion:
        array = engine.empty(len(data), "uint8", access="read")
        array[:] = np.frombuffer(data, np.uint8)
        return self._register(engine, array)

    def _register(self, engine: Engine, array: Any) -> RemoteRegion:
        region = engine.register(array, access="read")
        self._regions.append(region)
        return region.remote()

    def _close_regions(self) -> None:
        for region in self._regions:
            region.close()
