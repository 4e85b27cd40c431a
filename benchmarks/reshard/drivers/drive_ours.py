"""This library: a plan carried out again and again, or versions published and fetched."""

from __future__ import annotations

import base64
import pickle
from importlib.metadata import version

from member import Member, serve

from transport import Engine
from transport.sharding.execute import Execution
from transport.sharding.state import StateLayout


class Ours(Member):
    version = f"tensor-transport {version('tensor-transport')}"

    def __init__(self, side, rank, spec, options):
        self.engine = Engine(name=f"{side}-{rank}")
        super().__init__(side, rank, spec, options)
        self.regions = {name: self.engine.register(it) for name, it in self.tensors.items()}
        self.execution = None

    def make(self, shape, dtype):
        if self.options["memory"] == "pool":
            return self.engine.empty(shape, dtype).zero_()
        return super().make(shape, dtype)

    def facts(self):
        if self.side == "target":
            return {}
        handles = {name: region.remote() for name, region in self.regions.items()}
        return {"handles": base64.b64encode(pickle.dumps(handles)).decode()}

    def connect(self, facts):
        if self.side == "source":
            return
        handles = [pickle.loads(base64.b64decode(it["handles"])) for it in facts["source"]]
        source, target = (
            StateLayout.decode(base64.b64decode(self.spec["sides"][side]["layout"]))
            for side in ("source", "target")
        )
        self.execution = Execution(
            self.engine,
            source,
            target,
            self.rank,
            remote=dict(enumerate(handles)),
            local={name: self.regions[name] for name in self.tensors},
        )

    def load(self, seed):
        self.execution.run(60.0)

    def close(self):
        if self.execution is not None:
            self.execution.close()
        for region in self.regions.values():
            region.close()
        self.engine.close()


serve(Ours)
