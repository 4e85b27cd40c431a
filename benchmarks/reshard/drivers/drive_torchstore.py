"""torchstore: sources put DTensors, targets get slices of them into their tensors.

It starts its own processes, of both sides. Its Monarch links to the CUDA driver; where there is
none, `options["stub"]` is a folder with a library of that name whose functions all fail.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Store:
    """Both sides: what `member.serve` asks is passed on to actors."""

    def __init__(self, side, rank, spec, options):
        self.version = f"torchstore {version('torchstore')}"
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self._start(spec, options))

    async def _start(self, spec, options):
        _environment(options)
        import torchstore
        from actors import Rank
        from monarch.actor import this_host
        from torchstore.strategy import LocalRankStrategy

        self.store = torchstore
        counts = {side: len(about["boxes"]) for side, about in spec["sides"].items()}
        await torchstore.initialize(counts["source"], strategy=LocalRankStrategy())
        self.actors = {}
        for side, count in counts.items():
            processes = this_host().spawn_procs(per_host={"one": count})
            self.actors[side] = processes.spawn(side, Rank, side, spec)
            await self.actors[side].join.call(_free_port(), count)

    def facts(self):
        return {}

    def connect(self, facts):
        pass

    def _all(self, side, endpoint, *arguments):
        call = getattr(self.actors[side], endpoint).call(*arguments)
        return self.loop.run_until_complete(_awaited(call))

    def fill(self, seed):
        self._all("source", "fill", seed)

    def clear(self):
        self._all("target", "clear")

    def sync(self, seed):
        self._all("source", "put")
        self._all("target", "get")

    def digest(self):
        found = sorted((point["one"], it) for point, it in self._all("target", "digest"))
        return [it for _, it in found]

    def close(self):
        self.loop.run_until_complete(self.store.shutdown())


async def _awaited(call):
    return await call


def _environment(options):
    """Also for the processes that Monarch starts."""
    os.environ["PYTHONPATH"] = str(HERE)
    os.environ.setdefault("HOSTNAME", socket.gethostname())
    os.environ["LOCAL_RANK"] = "0"
    if options.get("stub"):
        os.environ["LD_LIBRARY_PATH"] = options["stub"]
        ctypes.CDLL(f"{options['stub']}/libcuda.so.1", ctypes.RTLD_GLOBAL)


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    from member import serve

    serve(Store)
