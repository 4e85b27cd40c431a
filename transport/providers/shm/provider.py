"""The shm provider: one connection per peer on the same host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transport.errors import InvalidUse, PeerRefused
from transport.ffi import check, ffi, lib
from transport.types import UNDECODABLE, LinkFacts, Offer, Viability

if TYPE_CHECKING:
    from transport.config import Settings
    from transport.ffi import NativeEngine, NativePeer

_TOKEN_BYTES = 16
_DESCRIPTORS = 2  # the region directory and the hazard page


class _Facts(msgspec.Struct, frozen=True, array_like=True):
    """struct tn_shm_offer on the wire."""

    token_address: int
    token: bytes
    directory_bytes: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Facts).decode


class ShmConnection:
    """One peer on this host, being connected."""

    def __init__(self, engine: NativeEngine) -> None:
        out = ffi.new("struct tn_shm_connection **")
        check(lib.tn_shm_connection_open(engine.pointer, out))
        self._pointer = out[0]

    def offer(self) -> Offer:
        facts, fds = ffi.new("struct tn_shm_offer *"), ffi.new("int[2]")
        check(lib.tn_shm_connection_offer(self._pointer, facts, fds))
        token = bytes(ffi.buffer(facts.token))
        data = _encode(_Facts(facts.token_address, token, facts.directory_bytes))
        return Offer(data, (fds[0], fds[1]))

    def accept(self, offer: Offer, facts: LinkFacts) -> None:
        try:
            theirs = _native_offer(offer)
        except PeerRefused:
            for fd in offer.fds:
                os.close(fd)
            raise
        fds = ffi.new("int[2]", list(offer.fds))
        check(lib.tn_shm_connection_accept(self._pointer, facts.pid, theirs, fds))

    def attach(self, peer: NativePeer) -> None:
        check(lib.tn_shm_connection_attach(self._pointer, peer.pointer))
        self._pointer = ffi.NULL  # the peer's from now on

    def close(self) -> None:
        pointer, self._pointer = self._pointer, ffi.NULL
        if pointer:
            lib.tn_shm_connection_close(pointer)


def _native_offer(offer: Offer) -> object:
    """Checks what came from the peer before C sees it."""
    try:
        facts = _decode(offer.data)
    except UNDECODABLE:
        raise PeerRefused("the peer's shm offer is not one of this protocol") from None
    if len(facts.token) != _TOKEN_BYTES or len(offer.fds) != _DESCRIPTORS:
        raise PeerRefused("the peer's shm offer lacks its token or descriptors")
    if not 0 <= facts.token_address < 1 << 64 or not 0 <= facts.directory_bytes < 1 << 63:
        raise PeerRefused("the peer's shm offer has numbers out of range")
    native = ffi.new("struct tn_shm_offer *")
    native.token_address, native.directory_bytes = facts.token_address, facts.directory_bytes
    ffi.memmove(native.token, facts.token, _TOKEN_BYTES)
    return native


class ShmEndpoint:
    """Makes connections for peers that are reached over a unix socket."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine

    def connection(self, facts: LinkFacts) -> ShmConnection | None:
        return ShmConnection(self._engine) if facts.is_unix else None

    def describe(self) -> str:
        return "shm: mapped pool memory, else process_vm, else the unix stream"

    def close(self) -> None:
        pass


class ShmProvider:
    """Probing is cheap; whether process_vm reaches a peer shows only when it is connected."""

    name = "shm"
    identifier = 0

    def probe(self, settings: Settings) -> Viability:
        if not hasattr(os, "memfd_create"):
            reason = f"this Python ({sys.version.split()[0]}) or kernel has no memfd_create"
            return Viability(False, reason, "use Linux 3.17 or newer")
        try:
            os.close(os.memfd_create("tensor-transport-probe", os.MFD_CLOEXEC))
        except OSError as error:
            return Viability(False, f"memfd_create fails: {error.strerror}", "allow it in seccomp")
        return Viability(True, "memfd_create works")

    def open(self, engine: NativeEngine, settings: Settings) -> ShmEndpoint:
        _allow_ptracer(settings.allow_ptracer)
        return ShmEndpoint(engine)


_YAMA = Path("/proc/sys/kernel/yama")
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = (1 << 64) - 1


def _allow_ptracer(value: str) -> None:
    """Under Yama (ptrace_scope 1) only a parent may use process_vm unless the target allows it."""
    if not value:
        return
    import ctypes

    number = ctypes.c_ulong(_PR_SET_PTRACER_ANY if value == "any" else int(value))
    failed = ctypes.CDLL(None).prctl(_PR_SET_PTRACER, number, 0, 0, 0)
    # Without Yama the call is unknown and nothing has to be allowed (prctl(2)).
    if failed and _YAMA.exists():
        raise InvalidUse(f"TRANSPORT_ALLOW_PTRACER: there is no process {value}")


PROVIDER = ShmProvider()
