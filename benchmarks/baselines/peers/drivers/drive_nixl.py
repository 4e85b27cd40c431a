"""NIXL with its UCX backend: one-sided, a transfer handle that is made once and posted again."""

from __future__ import annotations

import base64
import importlib.metadata

from nixl_cu12._api import nixl_agent, nixl_agent_config
from protocol import Driver, aligned, clocked, serve


class Nixl(Driver):
    version = importlib.metadata.version("nixl-cu12")

    def __init__(self, role, options):
        super().__init__(role, options)
        # The target wires up in its progress thread. NIXL's default is one at the initiator, too,
        # which polls anyway: where cores are few that thread takes the time of the copies.
        config = nixl_agent_config(enable_prog_thread=role == "target", backends=[])
        self.agent = nixl_agent(role, config)
        self.agent.create_backend("UCX", {"ucx_error_handling_mode": "peer"})
        self.buffer = aligned(self.bytes)
        self.address = self.buffer.ctypes.data
        place = (self.address, self.bytes, 0, "")
        self.registered = self.agent.register_memory([place], "DRAM")
        self.handle = self.peer = self.there = None

    def facts(self):
        metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "address": self.address}

    def connect(self, facts):
        peer = self.agent.add_remote_agent(base64.b64decode(facts["metadata"]))
        self.peer = peer.decode() if isinstance(peer, bytes) else peer
        self.there = facts["address"]
        if self.role == "initiator":
            self.agent.make_connection(self.peer)

    def prepare(self, layout):
        if self.role == "target":
            return
        if self.handle is not None:
            self.handle.release()
        here = self._descriptors(self.address, layout, "initiator")
        there = self._descriptors(self.there, layout, "target")
        self.handle = self.agent.initialize_xfer(self.op.upper(), here, there, self.peer)

    def _descriptors(self, base, layout, role):
        places = layout.offsets(role).tolist()
        rows = [(base + place, layout.size, 0) for place in places]
        return self.agent.get_xfer_descs(rows, "DRAM")

    def run(self, count):
        return clocked(self._once, count) if self.role == "initiator" else None

    def _once(self):
        agent, handle = self.agent, self.handle
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"the transfer ended as {state}")

    def close(self):
        if self.handle is not None:
            self.handle.release()
        self.agent.deregister_memory(self.registered)


serve(Nixl)
