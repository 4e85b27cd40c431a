"""torch.distributed's gloo: two-sided; a batch ends with one byte back, when all has arrived."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from protocol import Driver, aligned, clocked, serve

_HOST = "127.0.0.1"


class Gloo(Driver):
    version = f"torch {torch.__version__}"

    def __init__(self, role, options):
        super().__init__(role, options)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.buffer = aligned(self.bytes)
        self.tensor = torch.from_numpy(self.buffer)
        self.acknowledged = torch.zeros(1, dtype=torch.uint8)
        self.store = self._store(0, role == "initiator") if role == "initiator" else None
        self.blocks = []
        self.other = 1 if role == "initiator" else 0

    def _store(self, port, master):
        return dist.TCPStore(_HOST, port, is_master=master, wait_for_workers=False)

    def facts(self):
        return {"port": self.store.port} if self.store else {}

    def connect(self, facts):
        store = self.store or self._store(facts["port"], False)
        dist.init_process_group("gloo", store=store, world_size=2, rank=1 - self.other)

    def prepare(self, layout):
        places = layout.offsets(self.role).tolist()
        self.blocks = [self.tensor[place : place + layout.size] for place in places]

    def run(self, count):
        if self.role == "initiator":
            return clocked(self._send, count)
        for _ in range(count):
            self._receive()
        return None

    def _send(self):
        self._all(dist.isend)
        dist.recv(self.acknowledged, self.other)

    def _receive(self):
        self._all(dist.irecv)
        dist.send(self.acknowledged, self.other)

    def _all(self, begin):
        for work in [begin(block, self.other) for block in self.blocks]:
            work.wait()

    def close(self):
        dist.destroy_process_group()


serve(Gloo)
