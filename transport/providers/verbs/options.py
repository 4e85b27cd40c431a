"""From settings to what C is told of a rail. May import ffi, devices and the standard library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.ffi import ffi, lib

if TYPE_CHECKING:
    from transport.config import Settings
    from transport.providers.verbs.devices import UsablePort

_SYSFS_BYTES = 127
_RELAXED = {
    "auto": lib.TN_VERBS_RELAXED_AUTO,
    "off": lib.TN_VERBS_RELAXED_OFF,
    "on": lib.TN_VERBS_RELAXED_ON,
}


def rail_options(rail: UsablePort, settings: Settings, context: int = 0) -> Any:
    """struct tn_verbs_rail_options; `context` is the address of one that somebody else opened."""
    options = ffi.new("struct tn_verbs_rail_options *")
    options.device = rail.facts.device.encode()
    options.sysfs = str(settings.verbs_sysfs).encode()[:_SYSFS_BYTES]
    options.port = rail.facts.number
    options.context = ffi.cast("void *", context)
    options.gid_index = rail.gid.index
    options.pkey_index = rail.pkey_index
    options.notify_slots = settings.notify_depth
    options.piece_bytes = settings.verbs_piece_bytes
    options.window_bytes = settings.verbs_window_bytes
    options.send_depth = settings.verbs_depth
    options.inline_bytes = settings.verbs_inline_bytes
    options.mtu = settings.verbs_mtu
    options.timeout = settings.verbs_timeout
    options.retry_count = settings.verbs_retry_count
    options.rnr_retry = settings.verbs_rnr_retry
    options.min_rnr_timer = settings.verbs_rnr_timer
    options.service_level = settings.verbs_service_level
    options.traffic_class = settings.verbs_traffic_class
    options.hop_limit = settings.verbs_hop_limit
    options.relaxed_ordering = _RELAXED[settings.verbs_relaxed_ordering]
    return options
