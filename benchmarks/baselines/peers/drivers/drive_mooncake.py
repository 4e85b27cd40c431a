"""Mooncake's TransferEngine over its TCP transport, the only one for hosts without RDMA."""

from __future__ import annotations

import importlib.metadata

from mooncake.engine import TransferEngine
from protocol import Driver, aligned, clocked, serve

_MOST = 1024  # blocks in a call: with 4096 its queues are full and the call fails


class Mooncake(Driver):
    version = importlib.metadata.version("mooncake-transfer-engine-non-cuda")

    def __init__(self, role, options):
        super().__init__(role, options)
        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("initialize failed")
        self.buffer = aligned(self.bytes)
        self.address = self.buffer.ctypes.data
        if self.engine.register_memory(self.address, self.bytes):
            raise RuntimeError("register_memory failed")
        self.segment, self.there = "", 0
        self.call, self.calls = None, []

    def facts(self):
        return {"segment": f"127.0.0.1:{self.engine.get_rpc_port()}", "address": self.address}

    def connect(self, facts):
        self.segment, self.there = facts["segment"], facts["address"]

    def prepare(self, layout):
        here = [self.address + place for place in layout.offsets("initiator").tolist()]
        there = [self.there + place for place in layout.offsets("target").tolist()]
        if layout.batch == 1:
            self.call = getattr(self.engine, f"transfer_sync_{self.op}")
            self.calls = [(self.segment, here[0], there[0], layout.size)]
            return
        self.call = getattr(self.engine, f"batch_transfer_sync_{self.op}")
        parts = [slice(at, at + _MOST) for at in range(0, layout.batch, _MOST)]
        lengths = [layout.size] * layout.batch
        self.calls = [(self.segment, here[it], there[it], lengths[it]) for it in parts]

    def run(self, count):
        return clocked(self._once, count) if self.role == "initiator" else None

    def _once(self):
        for arguments in self.calls:
            status = self.call(*arguments)
            if status:
                raise RuntimeError(f"the transfer ended with {status}")

    def close(self):
        self.engine.unregister_memory(self.address)


serve(Mooncake)
