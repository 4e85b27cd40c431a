"""torch.distributed.checkpoint through files in memory: it reshards by itself when it loads."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dtensors import join
from member import Member, serve

_HOST = "127.0.0.1"


class Checkpoint(Member):
    def __init__(self, side, rank, spec, options):
        super().__init__(side, rank, spec, options)
        self.folder = Path(options["folder"])
        self.store = (
            None if rank else dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
        )

    def facts(self):
        return {"port": self.store.port} if self.store else {}

    def connect(self, facts):
        port = facts[self.side][0]["port"]
        self.state = join(self, self.store or dist.TCPStore(_HOST, port, is_master=False))

    def save(self, seed):
        dcp.save(self.state, checkpoint_id=self.folder)

    def load(self, seed):
        dcp.load(self.state, checkpoint_id=self.folder)

    def close(self):
        dist.destroy_process_group()


serve(Checkpoint)
