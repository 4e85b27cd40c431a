"""The verbs provider: an engine's rails, and for each peer lanes between its rails and ours."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from transport.errors import PeerRefused, TransportError, Unavailable
from transport.ffi import check, ffi, lib, text
from transport.memory.registering import Manner
from transport.providers.verbs import devices, rails
from transport.providers.verbs.adopt import Context, adopt
from transport.providers.verbs.near import Near
from transport.providers.verbs.options import rail_options
from transport.types import UNDECODABLE, LinkFacts, Offer, Viability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transport.config import Settings
    from transport.ffi import NativeEngine, NativePeer

_REASON_BYTES = 512
_WHY_BYTES = int(lib.TN_TEXT_BYTES) - 1

_log = logging.getLogger("transport.providers.verbs")


_REVISION = 2  # of this offer and of native/providers/verbs/exchange.h
_MAX_LANES = 32


class _Offer(msgspec.Struct, frozen=True, array_like=True):
    """What two engines tell each other; decoding checks every range."""

    revision: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
    qps: Annotated[int, msgspec.Meta(ge=1, le=_MAX_LANES)]
    rails: rails.Rails


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Offer).decode


def _checked(data: bytes) -> _Offer:
    try:
        offer = _decode(data)
    except UNDECODABLE as error:
        text = f"the peer's verbs offer is not one of this protocol ({error})"
        raise PeerRefused(text) from None
    if offer.revision != _REVISION:
        raise PeerRefused(f"the peer speaks revision {offer.revision} of verbs, not {_REVISION}")
    rails.checked(offer.rails)
    return offer


class VerbsConnection:
    """One peer, being connected: which lanes there will be. They open when first used."""

    def __init__(self, endpoint: VerbsEndpoint) -> None:
        self._endpoint = endpoint
        self._ours = endpoint.offer  # as the peer is told, whatever changes meanwhile
        self._pointer: Any = ffi.NULL

    def offer(self) -> Offer:
        return Offer(_encode(self._ours))

    def accept(self, offer: Offer, facts: LinkFacts) -> None:
        ours, theirs = self._ours, _checked(offer.data)
        lower, higher = (ours, theirs) if facts.initiator else (theirs, ours)
        lanes = rails.match(lower.rails, higher.rails, min(ours.qps, theirs.qps))
        if not lanes:
            raise PeerRefused(rails.mismatch(lower.rails, higher.rails))
        paired = lanes if facts.initiator else [(here, there) for there, here in lanes]
        self._open(paired, theirs, facts.initiator)

    def _open(self, lanes: list[tuple[int, int]], theirs: _Offer, initiator: bool) -> None:
        """`lanes` are pairs of a rail here and one there."""
        mine = {rail.number: rail for rail in self._ours.rails}
        others = {rail.number: rail for rail in theirs.rails}
        options = ffi.new("struct tn_verbs_link_options *")
        options.is_proposer = initiator
        options.n_lanes = len(lanes)
        for number, (here, there) in enumerate(lanes):
            options.rails[number], options.remote_rails[number] = here, there
            if not rails.can_read(mine[here], others[there]):
                options.write_only |= 1 << number
            if not others[there].atomics:  # what ours can do C knows
                options.no_atomics |= 1 << number
        used = [others[number] for number in sorted({there for _, there in lanes})]
        options.why_no_atomics = rails.without_atomics(used, "the peer's").encode()[:_WHY_BYTES]
        options.recovery_ns = int(self._endpoint.recovery * 1e9)
        out = ffi.new("struct tn_verbs_link **")
        check(lib.tn_verbs_link_open(self._endpoint.native, options, out))
        self._pointer = out[0]

    def attach(self, peer: NativePeer) -> None:
        check(lib.tn_verbs_link_attach(self._pointer, peer.pointer))
        self._pointer = ffi.NULL  # the peer's from now on

    def close(self) -> None:
        pointer, self._pointer = self._pointer, ffi.NULL
        if pointer:
            lib.tn_verbs_link_close(pointer)


class VerbsEndpoint:
    """One engine's rails: the place in the list is the number in C."""

    def __init__(
        self,
        native: Any,
        opened: list[tuple[devices.UsablePort, Any]],
        settings: Settings,
        owners: Any = None,
    ) -> None:
        self.native = native  # struct tn_verbs *
        self.rails = [rail for rail, _ in opened]
        self._native_rails = [pointer for _, pointer in opened]
        self._settings = settings
        self.recovery = settings.verbs_recovery
        self._owners = owners  # of adopted contexts: they must not go before the rails
        self.near = Near(self.rails, settings.verbs_sysfs, settings.verbs_nic_map)
        self._describe()

    def _describe(self) -> None:
        facts = [rail.offer(number) for number, rail in enumerate(self.rails)]
        self.offer = _Offer(_REVISION, self._settings.verbs_qps_per_peer, facts)

    def changed(self) -> None:
        """A port's table may have changed (A8): later queue pairs use each rail's GID of now."""
        request = devices.Request.of(self._settings)
        for number, rail in enumerate(self.rails):
            try:
                found = devices.again(rail, request)
                if (found.gid.index, found.gid.raw) == (rail.gid.index, rail.gid.raw):
                    continue
                check(lib.tn_verbs_rail_gid_set(self._native_rails[number], found.gid.index))
            except TransportError as error:  # the port may be on its way: it will be asked again
                _log.warning("%s keeps GID %s: %s", rail.name, rail.gid, error)
                continue
            _log.info("%s: GID %s instead of %s", rail.name, found.gid, rail.gid)
            self.rails[number] = found
        self._describe()

    def stats(self) -> list[tuple[devices.UsablePort, Any]]:
        """Each rail as it was opened, and its struct tn_verbs_rail_stats."""
        made: list[tuple[devices.UsablePort, Any]] = []
        for port, pointer in zip(self.rails, self._native_rails, strict=True):
            native = ffi.new("struct tn_verbs_rail_stats *")
            lib.tn_verbs_rail_stats(pointer, native)
            made.append((port, native))
        return made

    def connection(self, facts: LinkFacts) -> VerbsConnection | None:
        return VerbsConnection(self)

    def describe(self) -> str:
        return f"verbs: {', '.join(map(str, self.rails))}"

    def close(self) -> None:
        pass  # the rails close with the native engine


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

    def _discover(self, settings: Settings) -> tuple[list[devices.UsablePort], dict[str, str]]:
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
            found, refused = self._discover(settings)
        except TransportError as error:
            return Viability(False, str(error))
        if not found:
            return Viability(False, f"no RDMA port can be used: {_reasons(refused)}")
        return Viability(True, f"{text(reason)}; the best port is {found[0]}")

    def open(self, engine: NativeEngine, settings: Settings) -> VerbsEndpoint:
        found, refused = self._discover(settings)
        if not found:
            raise Unavailable(f"no RDMA port can be used: {_reasons(refused)}")
        out = ffi.new("struct tn_verbs **")
        library = settings.verbs_lib.encode() if settings.verbs_lib else ffi.NULL
        check(lib.tn_verbs_open(engine.pointer, library, out))
        threads = Manner(settings.register_threads).workers()
        check(lib.tn_verbs_split_regions(out[0], settings.verbs_region_bytes, threads))
        idle_ns = int(settings.verbs_idle_time * 1e9)
        check(lib.tn_verbs_limit_pairs(out[0], settings.verbs_idle_qps, idle_ns))
        opened: list[tuple[devices.UsablePort, Any]] = []
        for rail in found:
            if len(opened) == settings.verbs_rails:
                break
            try:
                context = self._contexts.get(rail.facts.device, 0)
                opened.append((rail, _open_rail(out[0], rail, settings, context)))
            except TransportError as error:
                refused[rail.name] = str(error)
        if not opened:
            raise Unavailable(f"no RDMA port can be opened: {_reasons(refused)}")
        return VerbsEndpoint(out[0], opened, settings, self._owners)


def _open_rail(verbs: Any, rail: devices.UsablePort, settings: Settings, context: int) -> Any:
    out = ffi.new("struct tn_verbs_rail **")
    check(lib.tn_verbs_rail_open(verbs, rail_options(rail, settings, context), out))
    return out[0]


PROVIDER = VerbsProvider()
