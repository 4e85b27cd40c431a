"""One life of another engine, as this one sees it.

May import control, memory, providers, ffi, types and errors.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from transport.control.records import State
from transport.errors import InvalidUse, Status
from transport.ffi import ffi, lib, text
from transport.ffi.handle import unpicklable
from transport.providers import registry
from transport.types import Access

if TYPE_CHECKING:
    from transport.control.records import PeerRecord
    from transport.engine.core import Core
    from transport.memory.remote import RemoteRegion

_EXPLANATION = 16384  # bytes
_PATIENCE = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Lane:
    """One queue pair between a rail of this engine and one of the peer's. See `Peer.lanes`."""

    device: str
    port: int
    rail: int
    """Number of the rail in this engine: the position among those that `doctor` says are used."""
    remote_rail: int
    state: str
    """"unused", "opening", "ready", "stopped" or "failed"."""
    failures: int
    """Of the path, since a request last succeeded."""
    operations: int
    """Work requests that succeeded."""
    bytes: int
    retries: int
    """Requests that were handed out again after a failure."""
    reconnects: int
    """How often it was opened again."""
    errors: int
    """Completions with an error of their own."""
    reason: str
    """Why it last failed; empty when it never did."""


_MAX_LANES = 32
_STATES = ("unused", "opening", "ready", "stopped", "failed")
_COUNTS = ("operations", "bytes", "retries", "reconnects", "errors")


def _lane(native: Any) -> Lane:
    return Lane(
        device=text(native.device),
        port=native.port,
        rail=native.rail,
        remote_rail=native.remote_rail,
        state=_STATES[native.state],
        failures=native.failures,
        reason=text(native.text),
        **{name: getattr(native, name) for name in _COUNTS},
    )


class Peer:
    """An engine that this one knows. Made by `Engine.connect`, or found in `Engine.peers`."""

    __slots__ = ("_core", "_parent", "_record")

    def __init__(self, parent: Any, core: Core, record: PeerRecord) -> None:
        self._parent = parent
        self._core = core
        self._record = record

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def incarnation(self) -> bytes:
        """16 random bytes that name this life of the engine."""
        return self._record.incarnation

    @property
    def pid(self) -> int:
        """Process number on its host; 0 while it is not known."""
        return self._record.pid

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens."""
        return tuple(map(str, self._record.addresses))

    @property
    def connected(self) -> bool:
        if self._core.gate.closed:
            return False
        with self._core:  # C knows first; the record follows
            return bool(lib.tn_peer_state(self._record.native.pointer) == Status.OK)

    @property
    def providers(self) -> tuple[str, ...]:
        """What is attached, most wanted first."""
        return tuple(n for n in self._core.paths.identifiers if n in self._record.providers)

    def counters(self) -> dict[str, dict[str, int]]:
        """What has moved: for each provider the transfers that this side started; "served" is
        what the peer did through its stream; "notifications" and "heartbeats" are both ways.

        "retries" are sends that found the stream's socket full. `lanes` has what each queue pair
        did; packets that the device sent again are in its own hw_counters.
        """
        stats = ffi.new("struct tn_peer_stats *")
        with self._core:
            lib.tn_peer_stats(self._record.native.pointer, stats)
        counts = {
            name: {key: getattr(stats.provider[number], key) for key in _COUNTERS}
            for name, number in self._core.paths.identifiers.items()
        }
        counts["served"] = {"operations": stats.served_operations, "bytes": stats.served_bytes}
        counts["notifications"] = {
            "sent": stats.notifications_sent,
            "received": stats.notifications_received,
        }
        counts["heartbeats"] = {"sent": stats.heartbeats_sent, "last_heard_ns": stats.last_heard_ns}
        return counts

    def lanes(self) -> list[Lane]:
        """What each queue pair to this peer is doing and has done; empty without RDMA."""
        native = ffi.new("struct tn_lane_stats[]", _MAX_LANES)
        with self._core:
            count = lib.tn_peer_lanes(self._record.native.pointer, native, _MAX_LANES)
        return [_lane(native[i]) for i in range(min(count, _MAX_LANES))]

    def explain(self, remote: RemoteRegion | None = None) -> list[str]:
        """Which providers this peer could use (for `remote`, if given), and why not the others."""
        record = self._record
        with self._core:  # refuses in a forked child
            pass
        left_out = registry.left_out(self._core.paths.identifiers)
        unused = {**left_out, **self._core.unused, **record.reasons}
        lines = [
            f"{name}: {'only its stream' if name in record.providers else 'not used'}: {why}"
            for name, why in unused.items()
        ]
        if remote is None:
            attached = [f"{name}: attached" for name in self.providers]
            return [*attached, *self._explain_remote(None), *lines]
        if remote.incarnation != record.incarnation:
            raise InvalidUse("explain() wants a remote region of this very peer")
        return [*self._explain_remote(remote), *lines]

    def lookup(self, name: str, timeout: float | None = None) -> RemoteRegion:
        """The remote region that the peer published under a name; waits until there is one.

        Raises DeadlineExceeded after `timeout` seconds (default: the setting connect_timeout).
        """
        return self._core.names.lookup(self._record, name, timeout)

    def close(self) -> None:
        """Disconnects; transfers in flight fail. The peer is connected again when it is needed."""
        with self._core:
            self._core.plane.disconnect(self._record)
        end = time.monotonic() + _PATIENCE
        while self._record.state is not State.LOST and time.monotonic() < end:
            time.sleep(0.001)  # the control thread is about to do it

    def _explain_remote(self, remote: RemoteRegion | None) -> list[str]:
        """What C says; without a remote region only what the lanes are doing."""
        native, op = ffi.NULL, 1
        if remote is not None:
            native = ffi.from_buffer("struct tn_remote[]", remote._owner.native)
            op = 1 if remote.access & Access.READ else 2
        out = ffi.new("char[]", _EXPLANATION)
        with self._core:
            pointer = self._record.native.pointer
            lib.tn_peer_explain(pointer, native, op, out, _EXPLANATION)
        return [line for line in text(out).splitlines() if line]

    def __reduce__(self) -> NoReturn:
        raise unpicklable("peer", "send one of its addresses")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and other._record is self._record

    def __hash__(self) -> int:
        return hash(id(self._record))

    def __repr__(self) -> str:
        return f"<Peer {self.name} {self._record.state.value}>"


_COUNTERS = ("operations", "bytes", "errors", "retries")
