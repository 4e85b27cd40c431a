"""A driver of benchmarks/baselines/peers over its own memory, with a fault if one is asked for."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks/baselines/peers/drivers"))

from protocol import Driver, aligned, clocked, pattern, serve  # type: ignore[import-not-found]


class Faulty(Driver):
    """One process is both ends: a run puts the other end's pattern into the buffer."""

    version = "1.0"

    def __init__(self, role, options):
        super().__init__(role, options)
        self.fault = options.get("fault")
        self.buffer, self.seed = aligned(self.bytes), None
        if self.fault == "open":
            raise RuntimeError("no such device")

    def fill(self, seed):
        self.seed = seed

    def run(self, count):
        if self.fault == "hang":
            time.sleep(3600)
        if self.fault == "die":
            print("out of luck", file=sys.stderr, flush=True)
            os._exit(3)
        if self.fault == "babble":
            os.write(3, b"this is no JSON\n")
        if self.fault == "raise":
            raise ValueError("cannot move it")
        return clocked(self._once, count)

    def _once(self):
        seed = self.seed + (self.fault == "wrong")
        blocks = pattern(self.layout.bytes, seed).reshape(self.layout.batch, -1)
        rows = self.buffer[: self.layout.bytes].reshape(self.layout.batch, -1)
        rows[self.layout.slots("initiator")] = blocks[self.layout.slots("target")]


serve(Faulty)
