"""What verbs would do here: the ports it would use or why not, and the settings on each.

May import finding, config and the verbs provider. Raises nothing for what is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.cli.finding import Finding, judged
from transport.errors import TransportError
from transport.providers.verbs import devices
from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport.config import Settings
    from transport.providers.verbs.devices import UsablePort

_FULL_MTU = 4096
# Hundredths of a millisecond by code 1 to 31; code 0 is the longest (InfiniBand Architecture
# Specification, volume 1, table 45: RNR NAK timer field).
_RNR_TIMERS = (
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
)  # fmt: skip


def rails(settings: Settings) -> list[Finding]:
    """Empty where there is no libibverbs or no device, which other checks tell."""
    try:
        found, refused = devices.discover(devices.Request.of(settings))
    except TransportError:
        return []
    findings = [finding for rail in found for finding in _rail(rail, settings)]
    for port, reason in refused.items():
        findings.append(Finding("rails", port, "missing", f"not used: {reason}"))
    return findings


def rnr_seconds(code: int) -> float:
    """How long a sender is asked to wait, by the code in TRANSPORT_VERBS_RNR_TIMER."""
    return _RNR_TIMERS[code] / 1e5


def _rail(rail: UsablePort, settings: Settings) -> Iterator[Finding]:
    name, facts = rail.name, rail.facts
    kind = "RoCE" if facts.ethernet else f"InfiniBand, LID {facts.lid}"
    rate = f", {facts.rate:.4g} GB/s" if facts.rate else ""
    driver = f", {facts.driver}" if facts.driver else ""
    yield Finding("rails", name, "ok", f"used: {kind}{rate}{driver}, firmware {facts.firmware}")
    yield judged("rails", f"{name} GID", f"{rail.gid} ({rail.gid.describe()})", _gid_remedy(rail))
    value = f"{rail.pkey:#06x} at index {rail.pkey_index}"
    remedy = "" if rail.pkey & 0x8000 else "a limited member reaches full members only"
    yield judged("rails", f"{name} P_Key", value, remedy)
    yield judged("rails", f"{name} MTU", *_mtu(rail, settings))
    yield Finding("rails", f"{name} limits", "ok", ", ".join(_limits(rail)))
    yield judged("rails", f"{name} reads", *_reads(rail))
    yield Finding("rails", f"{name} in force", "ok", ", ".join(_in_force(rail, settings)))


def _gid_remedy(rail: UsablePort) -> str:
    if not rail.facts.ethernet:
        return ""
    words = rail.gid.describe()
    if words == "link-local":
        return "reaches one switch at best: give the interface an address of your network"
    if words == "overlay network":
        return "reaches this host only: name another GID in TRANSPORT_VERBS_GID"
    if rail.gid.version == 1:
        return "RoCE v1 is not routed, and does not talk to v2"
    return ""


def _mtu(rail: UsablePort, settings: Settings) -> tuple[str, str]:
    facts = rail.facts
    used = min(settings.verbs_mtu or facts.active_mtu, facts.active_mtu)
    value = f"{used} (port: {facts.active_mtu} active, {facts.max_mtu} at most)"
    small = facts.ethernet and facts.active_mtu < min(facts.max_mtu, _FULL_MTU)
    where = rail.gid.interface or "the network interface"
    remedy = f"an MTU of 4200 or 9000 on {where} (and the switches) allows {_FULL_MTU}"
    return value, remedy if small else ""


def _reads(rail: UsablePort) -> tuple[str, str]:
    facts = rail.facts
    value = f"{facts.max_reads_out} started and {facts.max_reads_in} served at once"
    none = not facts.max_reads_out or not facts.max_reads_in
    return value, "the device takes no part in RDMA reads: they go another way" if none else ""


def _limits(rail: UsablePort) -> Iterator[str]:
    facts = rail.facts
    yield f"messages of {format_bytes(facts.max_message)}"
    yield f"regions of {format_bytes(facts.max_region)}, {facts.max_regions} of them"
    yield f"{facts.max_queue_pairs} queue pairs of {facts.max_send_depth} requests"
    yield f"{facts.max_sges} segments"
    yield "atomics" if facts.atomics else "no atomics"
    yield "on-demand paging" if facts.on_demand & 1 else "no on-demand paging"
    yield f"NUMA node {facts.numa}" if facts.numa >= 0 else "NUMA node not told"


def _in_force(rail: UsablePort, settings: Settings) -> Iterator[str]:
    """After the device's limits; the settings themselves are listed at the end of the report."""
    depth = min(settings.verbs_depth, rail.facts.max_send_depth)
    yield f"queue pairs per peer: {settings.verbs_qps_per_peer}, each {depth} requests deep"
    piece = min(settings.verbs_piece_bytes, rail.facts.max_message or settings.verbs_piece_bytes)
    yield f"pieces of {format_bytes(piece)}, window {format_bytes(settings.verbs_window_bytes)}"
    yield f"traffic class {settings.verbs_traffic_class}, level {settings.verbs_service_level}"
    yield f"hop limit {settings.verbs_hop_limit}"
    wait = 4.096e-6 * 2**settings.verbs_timeout
    yield f"sent again after {wait:.3g} s, {settings.verbs_retry_count} times"
    pause = rnr_seconds(settings.verbs_rnr_timer)
    yield f"a receiver not ready (RNR): waits {pause:.3g} s, {settings.verbs_rnr_retry} times"
    yield f"relaxed ordering {settings.verbs_relaxed_ordering}"
