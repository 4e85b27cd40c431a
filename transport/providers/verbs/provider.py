"""The verbs provider: one rail per engine, one reliable queue pair per peer on another host."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from transport.errors import PeerRefused, TransportError, Unavailable
from transport.ffi import check, ffi, lib, text
from transport.memory.registering import Manner
from transport.providers.verbs import devices
from transport.providers.verbs.adopt import Context, adopt
from transport.providers.verbs.options import rail_options
from transport.types import LinkFacts, Offer, Viability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transport.config import Settings
    from transport.ffi import NativeEngine, NativePeer

_GID_BYTES = 16
_REASON_BYTES = 512


class _Facts(msgspec.Struct, frozen=True, array_like=True):
    """struct tn_verbs_offer on the wire; the names are C's."""

    gid: bytes
    ring_address: int
    ring_rkey: int
    ring_slots: int
    queue_pair: int
    sequence: int
    lid: int
    mtu: int
    rail: int
    link_layer: int
    reads_in: int
    reads_out: int


_NUMBERS = tuple(name for name in _Facts.__struct_fields__ if name != "gid")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Facts).decode


def _native_offer(data: bytes) -> Any:
    """Checks what came from the peer as far as types go; C checks what the numbers mean."""
    try:
        facts = _decode(data)
    except msgspec.MsgspecError:
        raise PeerRefused("the peer's verbs offer is not one of this protocol") from None
    if len(facts.gid) != _GID_BYTES:
        raise PeerRefused("the peer's verbs offer has no GID")
    native = ffi.new("struct tn_verbs_offer *")
    ffi.memmove(native.gid, facts.gid, _GID_BYTES)
    try:
        for name in _NUMBERS:
            setattr(native, name, getattr(facts, name))
    except OverflowError:
        raise PeerRefused("the peer's verbs offer has numbers out of range") from None
    return native


class VerbsConnection:
    """One peer, being connected: a queue pair that waits for the other side's numbers."""

    def __init__(self, rail: Any) -> None:
        out = ffi.new("struct tn_verbs_connection **")
        check(lib.tn_verbs_connection_open(rail, out))
        self._pointer = out[0]

    def offer(self) -> Offer:
        native = ffi.new("struct tn_verbs_offer *")
        lib.tn_verbs_connection_offer(self._pointer, native)
        numbers = {name: getattr(native, name) for name in _NUMBERS}
        return Offer(_encode(_Facts(gid=bytes(ffi.buffer(native.gid)), **numbers)))

    def accept(self, offer: Offer, facts: LinkFacts) -> None:
        check(lib.tn_verbs_connection_accept(self._pointer, _native_offer(offer.data)))

    def attach(self, peer: NativePeer) -> None:
        check(lib.tn_verbs_connection_attach(self._pointer, peer.pointer))
        self._pointer = ffi.NULL  # the peer's from now on

    def close(self) -> None:
        pointer, self._pointer = self._pointer, ffi.NULL
        if pointer:
            lib.tn_verbs_connection_close(pointer)


class VerbsEndpoint:
    """One engine's rail."""

    def __init__(self, rail: devices.Rail, native_rail: Any, owners: Any = None) -> None:
        self.rail = rail
        self._owners = owners  # of adopted contexts: they must not go before the rail
        self._native_rail = native_rail

    def connection(self, facts: LinkFacts) -> VerbsConnection | None:
        # Over a unix socket the memory itself is within reach: no need for the NIC.
        return None if facts.is_unix else VerbsConnection(self._native_rail)

    def describe(self) -> str:
        return f"verbs: {self.rail}"

    def close(self) -> None:
        pass  # the rail closes with the native engine


def _reasons(refused: dict[str, str]) -> str:
    return "; ".join(f"{port}: {reason}" for port, reason in refused.items()) or "there is none"


class VerbsProvider:
    """RDMA. Absent library, driver, device or permission are reasons, not errors."""

    name = "verbs"
    identifier = 1

    def __init__(self) -> None:
        self._contexts: dict[str, int] = {}  # addresses by device
        self._owners: Any = None

    def adopting(self, contexts: Context | Iterable[Context], settings: Settings) -> VerbsProvider:
        """This provider on devices that are open already, and on no others.

        Raises InvalidUse for what is no open context.
        """
        made = VerbsProvider()
        made._contexts = adopt(contexts, settings.verbs_lib)
        made._owners = contexts
        return made

    def _discover(self, settings: Settings) -> tuple[list[devices.Rail], dict[str, str]]:
        request = devices.Request.of(settings)
        if self._contexts:
            request = dataclasses.replace(request, only=frozenset(self._contexts))
        return devices.discover(request)

    def probe(self, settings: Settings) -> Viability:
        reason = ffi.new("char[]", _REASON_BYTES)
        library = settings.verbs_lib.encode() if settings.verbs_lib else ffi.NULL
        if lib.tn_verbs_probe(library, reason, _REASON_BYTES) < 0:
            return Viability(False, text(reason), "`transport doctor` tells what this host has")
        try:
            rails, refused = self._discover(settings)
        except TransportError as error:
            return Viability(False, str(error))
        if not rails:
            return Viability(False, f"no RDMA port can be used: {_reasons(refused)}")
        return Viability(True, f"{text(reason)}; the best port is {rails[0]}")

    def open(self, engine: NativeEngine, settings: Settings) -> VerbsEndpoint:
        rails, refused = self._discover(settings)
        if not rails:
            raise Unavailable(f"no RDMA port can be used: {_reasons(refused)}")
        out = ffi.new("struct tn_verbs **")
        library = settings.verbs_lib.encode() if settings.verbs_lib else ffi.NULL
        check(lib.tn_verbs_open(engine.pointer, library, out))
        threads = Manner(settings.register_threads).workers()
        check(lib.tn_verbs_split_regions(out[0], settings.verbs_region_bytes, threads))
        for rail in rails:
            try:
                context = self._contexts.get(rail.facts.device, 0)
                opened = _open_rail(out[0], rail, settings, context)
                return VerbsEndpoint(rail, opened, self._owners)
            except TransportError as error:
                refused[rail.name] = str(error)
        raise Unavailable(f"no RDMA port can be opened: {_reasons(refused)}")


def _open_rail(verbs: Any, rail: devices.Rail, settings: Settings, context: int) -> Any:
    out = ffi.new("struct tn_verbs_rail **")
    check(lib.tn_verbs_rail_open(verbs, rail_options(rail, settings, context), out))
    return out[0]


PROVIDER = VerbsProvider()
