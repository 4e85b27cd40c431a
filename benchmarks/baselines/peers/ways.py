"""What is compared: libraries, the packages of each, and the ways in which each is driven."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Library:
    """One driver and its environment; no packages: the project's own environment has what it needs.

    `alone`: the runtime starts its processes itself. `spins`: it uses processors while idle, so it
    is stopped while others have their turn. `unbundled`: what its wheel depends on (CUDA, mostly)
    is left out. `module`: what to look for where nothing may be installed.
    """

    name: str
    packages: tuple[str, ...] = ()
    unbundled: bool = False
    alone: bool = False
    spins: bool = False
    module: str | None = None

    @property
    def driver(self) -> str:
        return f"drive_{self.name}.py"


_NUMPY = "numpy==2.4.6"

LIBRARIES = {
    library.name: library
    for library in (
        Library("transport"),
        Library("memcpy"),
        Library("process_vm"),
        Library("sockets"),
        Library("nixl", ("nixl-cu12==1.5.1", _NUMPY), unbundled=True, spins=True),
        Library("ucx", ("libucx-cu12==1.21.0", _NUMPY)),
        Library("gloo", ("torch==2.13.0", _NUMPY), module="torch"),
        Library("mooncake", ("mooncake-transfer-engine-non-cuda==0.3.13.post1", _NUMPY), True),
        Library("ray", ("ray==2.60.0", _NUMPY), alone=True),
        Library("monarch", ("torchmonarch==0.7.0", "torch==2.13.0", _NUMPY), alone=True),
    )
}


@dataclass(frozen=True)
class Way:
    """One column of the comparison: a library, an operation and the memory on the other side.

    `kind`: "ours", "peer" or "limit" (bare copies, which no ratio of a target counts as a peer).
    `python`: whether it is driven from Python, which some targets are about.
    """

    name: str
    library: str
    op: str
    kind: str = "peer"
    python: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def _ours(name: str, op: str, provider: str, memory: str, path: str) -> Way:
    options = {"provider": provider, "memory": memory, "path": path}
    return Way(name, "transport", op, "ours", options=options)


WAYS = (
    _ours("ours write pool", "write", "shm", "pool", "mapped"),
    _ours("ours read pool", "read", "shm", "pool", "mapped"),
    _ours("ours write private", "write", "shm", "private", "process_vm"),
    _ours("ours read private", "read", "shm", "private", "process_vm"),
    _ours("ours write tcp", "write", "tcp", "private", "tcp"),
    _ours("ours read tcp", "read", "tcp", "private", "tcp"),
    Way("memcpy write", "memcpy", "write", "limit"),
    Way("memcpy read", "memcpy", "read", "limit"),
    Way("process_vm write", "process_vm", "write", "limit"),
    Way("process_vm read", "process_vm", "read", "limit"),
    Way("2 sockets", "sockets", "write", "limit", options={"streams": 2}),
    Way("4 sockets", "sockets", "write", "limit", options={"streams": 4}),
    Way("8 sockets", "sockets", "write", "limit", options={"streams": 8}),
    Way("NIXL write", "nixl", "write"),
    Way("NIXL read", "nixl", "read"),
    Way("UCX put own", "ucx", "write", python=False, options={"memory": "own"}),
    Way("UCX put private", "ucx", "write", python=False, options={"memory": "private"}),
    Way("gloo send", "gloo", "write"),
    Way("Mooncake write", "mooncake", "write"),
    Way("Mooncake read", "mooncake", "read"),
    Way("Ray object store", "ray", "write"),
    Way("monarch write", "monarch", "write"),
    Way("monarch read", "monarch", "read"),
)
