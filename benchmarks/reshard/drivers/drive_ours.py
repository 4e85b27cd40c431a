"""This library: versions published and fetched, or a plan alone carried out again and again.

"live": targets read the sources' own tensors, which are filled between two versions. "snapshot":
sources copy theirs first, and go on. "plan": no versions, and nothing is checked but the bytes.
"""

from __future__ import annotations

import base64
import pickle
from importlib.metadata import version

from member import Member, serve

from transport import Engine, weights
from transport.sharding.execute import Execution
from transport.sharding.state import StateLayout

_PATIENCE = 60.0  # seconds


class Ours(Member):
    version = f"tensor-transport {version('tensor-transport')}"

    def __init__(self, side, rank, spec, options):
        self.engine = Engine(name=f"{side}-{rank}")
        self.side, self.options = side, options  # `make` needs them
        super().__init__(side, rank, spec, options)
        self.layouts = {
            side: StateLayout.decode(base64.b64decode(about["layout"]))
            for side, about in spec["sides"].items()
        }
        self.publication = self.subscription = self.execution = None
        self.regions = {}
        if self._plan:
            self.regions = {
                name: self.engine.register(it, access=self._access)
                for name, it in self.tensors.items()
            }
        elif side == "source":
            layout, how = self.layouts[side], options["how"]
            self.publication = weights.publish(
                self.engine, "model", self.tensors, layout=layout, rank=rank, mode=how
            )

    @property
    def _access(self):
        """The peers' right: memory of either kind is mapped only by those who need no more."""
        return "read" if self.side == "source" else "read-write"

    @property
    def _plan(self):
        return self.options["how"] == "plan"

    def make(self, shape, dtype):
        if self.options["memory"] == "pool":
            return self.engine.empty(shape, dtype, access=self._access).zero_()
        return super().make(shape, dtype)

    def facts(self):
        handles = {name: region.remote() for name, region in self.regions.items()}
        encoded = base64.b64encode(pickle.dumps(handles)).decode()
        return {"address": self.engine.addresses[0], "handles": encoded}

    def connect(self, facts):
        if self.side == "source":
            return
        if self._plan:
            handles = [pickle.loads(base64.b64decode(it["handles"])) for it in facts["source"]]
            self.execution = Execution(
                self.engine,
                self.layouts["source"],
                self.layouts["target"],
                self.rank,
                remote=dict(enumerate(handles)),
                local=self.regions,
            )
            return
        addresses = [it["address"] for it in facts["source"]]
        layout = self.layouts["target"]
        self.subscription = weights.subscribe(
            self.engine, "model", self.tensors, addresses, layout=layout, rank=self.rank
        )

    def fill(self, seed):
        if self.publication is None or self.publication.mode != "live":
            super().fill(seed)
            return
        with self.publication.writing(seed):
            super().fill(seed)

    def save(self, seed):
        self.publication.update(seed)

    def load(self, seed):
        if self.execution is not None:
            self.execution.run(_PATIENCE)
        else:
            self.subscription.fetch(seed, deadline=_PATIENCE)

    def close(self):
        for one in (self.execution, self.subscription, self.publication, *self.regions.values()):
            if one is not None:
                one.close()
        self.engine.close()


serve(Ours)
