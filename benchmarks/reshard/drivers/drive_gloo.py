"""torch.distributed over gloo: parts are gathered whole, and each target slices what is its.

"gather": the sources all-gather, and the first of them broadcasts to the targets, as trainers do
that hand full parameters to an engine. "shards": each source broadcasts its shards to the targets.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from member import Member, pieces, serve

_HOST = "127.0.0.1"
_BUCKET = 64 << 20  # bytes that are sent at a time


class Gloo(Member):
    def __init__(self, side, rank, spec, options):
        super().__init__(side, rank, spec, options)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.sources, self.targets = len(self.ranks("source")), len(self.ranks("target"))
        self.number = rank + (self.sources if side == "target" else 0)
        self.store = (
            dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
            if (self.number == 0)
            else None
        )
        self.places = [self._places(source) for source in range(self.sources)]
        self.length = max(places[1] for places in self.places)
        held = range(self.sources) if side == "target" or self._gathers else [rank]
        self.flat = {it: torch.zeros(self.length, dtype=torch.uint8) for it in held}

    @property
    def _gathers(self):
        return self.options["how"] == "gather"

    def _places(self, source):
        """Where each tensor of a source lies in its flat buffer, and the end."""
        places, at = {}, 0
        for name, about in self.spec["tensors"].items():
            shape = self.shape("source", source, name)
            dtype = getattr(torch, about["dtype"])
            count = torch.Size(shape).numel() * dtype.itemsize
            places[name] = (at, count, shape, dtype)
            at += -(-count // 64) * 64
        return places, at

    def facts(self):
        return {"port": self.store.port} if self.store else {}

    def connect(self, facts):
        port = facts["source"][0]["port"]
        store = self.store or dist.TCPStore(_HOST, port, is_master=False)
        world = self.sources + self.targets
        dist.init_process_group("gloo", store=store, world_size=world, rank=self.number)
        sources, targets = list(range(self.sources)), list(range(self.sources, world))
        self.among = dist.new_group(sources)
        self.fans = [dist.new_group([source, *targets]) for source in sources]
        self.copies = []
        if self.side == "target":
            views = [
                {name: self._view(source, name) for name in self.spec["tensors"]}
                for source in sources
            ]
            self.copies = [
                (self.tensors[name][here], views[source][name][there])
                for name, source, there, here in pieces(self.spec, self.rank)
            ]

    def _view(self, source, name):
        at, count, shape, dtype = self.places[source][0][name]
        return self.flat[source][at : at + count].view(dtype).reshape(shape)

    def sync(self, seed):
        if self.side == "source":
            for name, tensor in self.tensors.items():
                self._view(self.rank, name).copy_(tensor)
        for low in range(0, self.length, _BUCKET):
            self._bucket(slice(low, min(low + _BUCKET, self.length)))
        for here, there in self.copies:
            here.copy_(there)

    def _bucket(self, span):
        if self.side == "source" and self._gathers:
            whole = [self.flat[source][span] for source in range(self.sources)]
            dist.all_gather(whole, whole[self.rank].clone(), group=self.among)
        for source in range(self.sources):
            sender = 0 if self._gathers else source
            if self.side == "target" or self.number == sender:
                dist.broadcast(self.flat[source][span], sender, group=self.fans[sender])

    def close(self):
        dist.destroy_process_group()


serve(Gloo)
