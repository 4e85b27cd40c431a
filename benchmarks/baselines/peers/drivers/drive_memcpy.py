"""No library: numpy copies into, or out of, memory that both processes map."""

from __future__ import annotations

import mmap
import os

import numpy as np
from protocol import Driver, aligned, clocked, serve


class Memcpy(Driver):
    version = f"numpy {np.__version__}"

    def __init__(self, role, options):
        super().__init__(role, options)
        self.pairs = []
        if role == "target":
            self.shared = os.memfd_create("bench-peers")
            os.ftruncate(self.shared, self.bytes)
            self.buffer = self._map(self.shared)
            self.buffer[:] = 0
        else:
            self.buffer = aligned(self.bytes)

    def _map(self, descriptor):
        return np.frombuffer(mmap.mmap(descriptor, self.bytes), np.uint8)

    def facts(self):
        return {"file": f"/proc/{os.getpid()}/fd/{self.shared}"} if self.role == "target" else {}

    def connect(self, facts):
        if self.role == "initiator":
            descriptor = os.open(facts["file"], os.O_RDWR)
            self.there = self._map(descriptor)
            self.there.sum()  # faults the pages in
            os.close(descriptor)

    def prepare(self, layout):
        if self.role == "target":
            return
        size = layout.size
        places = zip(layout.offsets("initiator"), layout.offsets("target"))
        parts = [(self.buffer[a : a + size], self.there[b : b + size]) for a, b in places]
        self.pairs = [(b, a) for a, b in parts] if self.op == "write" else parts

    def run(self, count):
        return clocked(self._once, count) if self.role == "initiator" else None

    def _once(self):
        for target, source in self.pairs:
            np.copyto(target, source)


serve(Memcpy)
