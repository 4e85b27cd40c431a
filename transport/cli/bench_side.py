"""What both ends of `transport bench p2p` share: engines, named regions, the bytes in them.

May import engine. The passive end offers, for each kind of memory, a region that peers read (its
bytes are known to both) and one that they write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.engine.engine import Engine
    from transport.memory.region import Region

MEMORY = ("pool", "private")
SOURCE_SEED = 1

# Odd factors with well mixed bits: neighbouring words, and the same word of two seeds, differ.
_ODD = 0x9E3779B97F4A7C15
_MIX = 0xBF58476D1CE4E5B9


_OVER_UNIX = (None, "shm", "gpu_ipc")


def region_name(memory: str, op: str) -> str:
    """The name under which the passive end publishes what this operation reads or writes."""
    return f"bench/{memory}/{'source' if op == 'read' else 'target'}"


def open_engine(
    name: str,
    provider: str | None,
    *,
    secret: bytes | None = None,
    listen: Sequence[str] | None = None,
    advertise: str | None = None,
) -> Engine:
    """An engine that has the one provider that is asked for, or the usual ones.

    RDMA peers find each other over TCP, whose stream link is the tcp provider; so do those whose
    GPU memory is staged. gpu_ipc wants the unix socket.
    """
    from transport.engine.engine import Engine

    with_others = {
        None: None,
        "verbs": ("verbs", "tcp"),
        "staged": ("tcp", "staged"),
        "gpu_ipc": ("gpu_ipc", "shm"),
    }
    providers = with_others.get(provider, (provider or "",))
    return Engine(name=name, secret=secret, providers=providers, listen=listen, advertise=advertise)


def require_provider(name: str) -> None:
    """Raises Unavailable, with the reason and what would help, where it cannot be used here."""
    from transport.config import Settings
    from transport.providers import registry

    viability = registry.find(name).probe(Settings.from_env())
    if not viability.usable:
        raise Unavailable(f"{name} cannot be used here: {viability.reason}", viability.remedy)


def listen_for(provider: str | None) -> tuple[str, ...] | None:
    """What the passive end listens on; None: only the unix socket that is always there."""
    return None if provider in _OVER_UNIX else ("127.0.0.1:0",)


def pick_address(addresses: Sequence[str], provider: str | None) -> str:
    """The address that leads to this provider: tcp and verbs need a TCP link, shm a unix socket."""
    if provider in _OVER_UNIX:
        return addresses[0]
    for address in addresses:
        if not address.startswith("unix:"):
            return address
    raise InvalidUse(f"the peer listens on no TCP address, which {provider} needs")


def make_buffer(engine: Engine, memory: str, size: int) -> Any:
    """Touched bytes of one kind of memory: pool (the engine's, mappable) or private (ordinary)."""
    import numpy as np

    if memory == "pool":
        buffer = engine.empty((size,), "uint8")
    else:
        buffer = np.empty(size, np.uint8)
    buffer[:] = 0
    return buffer


def fill(buffer: Any, seed: int) -> None:
    """Bytes that both ends can make, that differ between seeds and between places."""
    buffer[:] = pattern(0, buffer.nbytes, seed)


def pattern(start: int, size: int, seed: int) -> Any:
    """Bytes `start` to `start + size` of the endless pattern of this seed."""
    import numpy as np

    first = start // 8
    words = np.arange(first, (start + size + 7) // 8, dtype=np.uint64)
    words *= np.uint64(_ODD)
    words ^= np.uint64((seed + 1) * _MIX % (1 << 64))
    begin = start - first * 8
    return words.view(np.uint8)[begin : begin + size]


def is_pattern(buffer: Any, seed: int, start: int = 0) -> bool:
    """Whether a buffer has the bytes of this seed's pattern from `start` on."""
    import numpy as np

    return bool(np.array_equal(buffer, pattern(start, buffer.nbytes, seed)))


def publish_regions(
    engine: Engine, memories: Sequence[str], ops: Sequence[str], size: int
) -> list[Region]:
    """Makes and names the passive end's regions, which the caller keeps."""
    regions = {(memory, op): _region(engine, memory, op, size) for memory in memories for op in ops}
    for (memory, op), region in regions.items():
        engine.publish(region_name(memory, op), region)
    return list(regions.values())


def _region(engine: Engine, memory: str, op: str, size: int) -> Region:
    buffer = make_buffer(engine, memory, size)
    if op == "read":
        fill(buffer, SOURCE_SEED)
    return engine.register(buffer)
