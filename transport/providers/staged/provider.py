"""The staged provider: one connection per peer, which costs nothing until GPU memory moves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from transport.errors import PeerRefused
from transport.ffi import check, ffi, lib
from transport.types import LinkFacts, Offer, Viability

if TYPE_CHECKING:
    from transport.config import Settings
    from transport.ffi import NativeEngine, NativePeer

_REVISION = b"\x01"  # of native/providers/staged/message.h


class StagedConnection:
    """One peer, being connected."""

    def __init__(self, engine: NativeEngine) -> None:
        out = ffi.new("struct tn_staged_link **")
        check(lib.tn_staged_link_open(engine.pointer, out))
        self._pointer = out[0]

    def offer(self) -> Offer:
        return Offer(_REVISION)

    def accept(self, offer: Offer, facts: LinkFacts) -> None:
        for fd in offer.fds:
            os.close(fd)
        if offer.data != _REVISION or offer.fds:
            raise PeerRefused(f"the peer's staged is of revision {offer.data[:8]!r}, not 1")

    def attach(self, peer: NativePeer) -> None:
        check(lib.tn_staged_link_attach(self._pointer, peer.pointer))
        self._pointer = ffi.NULL  # the peer's from now on

    def close(self) -> None:
        pointer, self._pointer = self._pointer, ffi.NULL
        if pointer:
            lib.tn_staged_link_close(pointer)


class StagedEndpoint:
    """Makes a connection for every peer: which of them have GPUs is seen when one is used."""

    def __init__(self, engine: NativeEngine, *, forbidden: bool) -> None:
        self._engine, self._forbidden = engine, forbidden

    def connection(self, facts: LinkFacts) -> StagedConnection | None:
        return StagedConnection(self._engine)

    def describe(self) -> str:
        if self._forbidden:
            return "staged: forbidden by gpu_direct, which is require"
        return "staged: GPU memory that nothing else reaches, through pinned host memory"

    def close(self) -> None:
        pass


class StagedProvider:
    """Always there. The GPU driver and the pinned memory are asked for when GPU memory moves."""

    name = "staged"
    identifier = 4

    def probe(self, settings: Settings) -> Viability:
        if _forbids(settings):
            return Viability(True, "but gpu_direct is require: no GPU memory goes this way")
        return Viability(True, "GPU memory goes through pinned host memory where nothing is direct")

    def open(self, engine: NativeEngine, settings: Settings) -> StagedEndpoint:
        return StagedEndpoint(engine, forbidden=_forbids(settings))


def _forbids(settings: Settings) -> bool:
    return settings.gpu_direct == "require"


PROVIDER = StagedProvider()
