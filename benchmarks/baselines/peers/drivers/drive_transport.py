"""This library: a prepared transfer between two engines, from Python."""

from __future__ import annotations

import base64
import pickle

import numpy as np
from protocol import Driver, aligned, clocked, serve

import transport
from transport import Blocks, Read, Write


class Transport(Driver):
    """`memory` is the target's: "pool" or "private". The initiator's is private."""

    version = transport.__version__

    def __init__(self, role, options):
        super().__init__(role, options)
        provider = options["provider"]
        self.engine = transport.Engine(
            name=role,
            secret=bytes.fromhex(options["secret"]),
            providers=[provider],
            listen=["127.0.0.1:0"] if provider == "tcp" else None,
        )
        pooled = role == "target" and options["memory"] == "pool"
        make = self._pooled if pooled else aligned
        self.buffer = make(self.bytes)
        self.region = self.engine.register(self.buffer)
        self.remote = self.transfer = None

    def _pooled(self, size):
        buffer = self.engine.empty((size,), np.uint8)
        buffer[:] = 0
        return buffer

    def facts(self):
        handle = base64.b64encode(pickle.dumps(self.region.remote())).decode()
        return {"handle": handle, "addresses": list(self.engine.addresses)}

    def connect(self, facts):
        if self.role == "initiator":
            stream = self.options["provider"] == "tcp"
            self.engine.connect(
                next(it for it in facts["addresses"] if it.startswith("unix:") != stream)
            )
            self.remote = pickle.loads(base64.b64decode(facts["handle"]))

    def prepare(self, layout):
        if self.role == "target":
            return
        if self.transfer is not None:
            self.transfer.close()
        here, there = self._sides(layout)
        request = Write(here, there) if self.op == "write" else Read(there, here)
        self.transfer = self.engine.prepare(request)

    def _sides(self, layout):
        size = layout.size
        if layout.batch == 1:
            return self.buffer[:size], self.remote.bytes(0, size)
        here = Blocks(self.buffer, layout.offsets("initiator"), size)
        return here, Blocks(self.remote.bytes(), layout.offsets("target"), size)

    def run(self, count):
        if self.role == "target":
            return None
        times = clocked(self.transfer.run, count)
        path, wanted = self.transfer.path, self.options["path"]
        if path != wanted:
            raise RuntimeError(f"it went by {path}, and this row is about {wanted}")
        return times

    def close(self):
        if self.transfer is not None:
            self.transfer.close()
        self.region.close()
        self.engine.close()


serve(Transport)
