"""The gpu_ipc provider: one connection per peer on the same host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from transport.errors import PeerRefused, TransportError
from transport.ffi import check, ffi, lib
from transport.memory.driver import choose
from transport.types import LinkFacts, Offer, Viability

if TYPE_CHECKING:
    from transport.config import Settings
    from transport.ffi import NativeEngine, NativePeer

_REVISION = b"\x01"  # of native/providers/gpu_ipc/message.h


class GpuIpcConnection:
    """One peer on this host, being connected."""

    def __init__(self, engine: NativeEngine) -> None:
        out = ffi.new("struct tn_ipc_link **")
        check(lib.tn_ipc_link_open(engine.pointer, out))
        self._pointer = out[0]

    def offer(self) -> Offer:
        fd = ffi.new("int *")
        check(lib.tn_ipc_link_offer(self._pointer, fd))
        return Offer(_REVISION, (fd[0],))

    def accept(self, offer: Offer, facts: LinkFacts) -> None:
        if offer.data != _REVISION or len(offer.fds) != 1:
            for fd in offer.fds:
                os.close(fd)
            raise PeerRefused(f"the peer's gpu_ipc is of revision {offer.data[:8]!r}, not 1")
        check(lib.tn_ipc_link_accept(self._pointer, facts.pid, offer.fds[0]))

    def attach(self, peer: NativePeer) -> None:
        check(lib.tn_ipc_link_attach(self._pointer, peer.pointer))
        self._pointer = ffi.NULL  # the peer's from now on

    def close(self) -> None:
        pointer, self._pointer = self._pointer, ffi.NULL
        if pointer:
            lib.tn_ipc_link_close(pointer)


class GpuIpcEndpoint:
    """Makes connections for peers that are reached over a unix socket."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine

    def connection(self, facts: LinkFacts) -> GpuIpcConnection | None:
        return GpuIpcConnection(self._engine) if facts.is_unix else None

    def describe(self) -> str:
        return "gpu_ipc: GPU memory of peers on this host, by descriptor or by handle"

    def close(self) -> None:
        pass


class GpuIpcProvider:
    """Probing starts no driver: that is left to the first transfer that touches GPU memory."""

    name = "gpu_ipc"
    identifier = 3

    def probe(self, settings: Settings) -> Viability:
        try:
            choose(settings)
            check(lib.tn_gpu_present())
        except TransportError as error:
            return Viability(False, str(error), "`transport doctor` tells what this host has")
        return Viability(True, "a GPU driver is here; it is started when GPU memory is used")

    def open(self, engine: NativeEngine, settings: Settings) -> GpuIpcEndpoint:
        return GpuIpcEndpoint(engine)


PROVIDER = GpuIpcProvider()
