"""What the machine can copy: as many bytes, between memory of the same kinds, by a thread of each
target; no tensors, no plan, no versions.

A source has one block in pool memory, which the targets map; each copies an equal part of every
source's into a block of its own, by one call for each source. `options["kind"]` names the stores.
"""

from __future__ import annotations

import base64
import math
import pickle

from member import Member, serve

from transport import Engine
from transport.cli.copy_limit import KINDS
from transport.ffi import ffi, lib


class Bare(Member):
    version = "tn_copy_as"

    def __init__(self, side, rank, spec, options):
        self.side, self.rank, self.kind = side, rank, KINDS[options["kind"]]
        self.engine = Engine(name=f"{side}-{rank}")
        sides = spec["sides"]
        self.part = _bytes(spec, sides["target"]["shapes"][0]) // len(sides["source"]["boxes"])
        parts = len(sides["target" if side == "source" else "source"]["boxes"])
        access = "read" if side == "source" else "read-write"
        self.block = self.engine.empty(parts * self.part, "uint8", access=access)
        self.block[:] = 0
        self.region = self.engine.register(self.block, access=access)
        self.mapped, self.copies = [], []

    def facts(self):
        return {"handle": base64.b64encode(pickle.dumps(self.region.remote())).decode()}

    def connect(self, facts):
        if self.side == "source":
            return
        for number, it in enumerate(facts["source"]):
            mapping = self.engine.map(pickle.loads(base64.b64decode(it["handle"])))
            whole = mapping.numpy()
            self.mapped.append((mapping, whole))
            here = self.block.ctypes.data + number * self.part
            there = whole.ctypes.data + self.rank * self.part
            self.copies.append([ffi.cast("void *", at) for at in (here, there)])

    def fill(self, seed):
        self.block[:] = seed % 251 + 1

    def clear(self):
        self.block[:] = 0

    def load(self, seed):
        for here, there in self.copies:
            lib.tn_copy_as(self.kind, here, there, self.part)

    def digest(self):
        """The one value that is there."""
        low, high = int(self.block.min()), int(self.block.max())
        return str(low) if low == high else f"{low} to {high}"

    def close(self):
        self.copies.clear()
        self.mapped.clear()
        self.region.close()
        self.engine.close()


def _bytes(spec, shapes):
    """Of one rank, as these tensors are."""
    import torch

    return sum(
        math.prod(shape) * getattr(torch, spec["tensors"][name]["dtype"]).itemsize
        for name, shape in shapes.items()
    )


serve(Bare)
