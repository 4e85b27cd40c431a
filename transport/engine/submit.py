"""Hands a batch to C: one native transfer for each peer and kind of request.

May import batch, transfer, control, ffi and errors. Runs within the engine's gate.
"""

from __future__ import annotations

import concurrent.futures
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from transport.engine import order
from transport.engine.batch import KEY_BYTES, OP_NAMES, RANGE, READ, WRITE
from transport.engine.core import Flight
from transport.engine.path import SELF
from transport.engine.transfer import Transfer
from transport.errors import DeadlineExceeded, InvalidUse
from transport.ffi import check, ffi, lib

if TYPE_CHECKING:
    from transport.control.records import PeerRecord
    from transport.engine.batch import Batch, Part
    from transport.engine.core import Core

_BATCH = ffi.typeof("struct tn_batch *")
_REMOTES = ffi.typeof("struct tn_remote[]")
_RANGES = ffi.typeof("struct tn_range[]")
_OUTERS = ffi.typeof("struct tn_outer[]")
_KEYS = ffi.typeof("uint32_t[]")
_BYTES = ffi.typeof("char[]")
_OUT = ffi.typeof("struct tn_transfer **")
_NO_DEADLINE = int(lib.TN_NO_DEADLINE)
_MAX_NOTIFY = int(lib.TN_MAX_NOTIFY)
_LONGEST = 1e9  # seconds; a longer deadline is none
_LOOK = 0.05  # seconds between looks whether the engine is being closed


class Options(NamedTuple):
    """What the caller asks of a transfer beside its requests."""

    notify: bytes | None = None
    deadline: float | None = None
    provider: str | None = None
    fallback: str | None = None
    stream: Any = None  # of a GPU; its work so far comes first


def submit(parent: object, core: Core, batch: Batch, options: Options) -> Transfer:
    """Begins everything in the batch. If a part is refused, the parts before it are cancelled."""
    notify = checked_notify(options.notify)
    deadline = deadline_ns(core, options.deadline)
    parts = batch.parts()
    notified = who_notifies(parts) if notify is not None else ()
    flights: list[Flight] = []
    transfer = Transfer(parent, core, flights, batch.pins)
    fence = order.fence(core, batch.devices, options.stream)
    try:
        for part in parts:
            record = core.plane.peer(part.owner.incarnation, part.owner.addresses)
            mask = allowed(core, record, options)
            says = notify if part in notified else None
            flights.append(flight_of(part, record))
            how = How(mask, deadline, says, fence)
            call_with_batch(lib.tn_submit, flights[-1], part, how)
    except BaseException:
        flights[:] = [flight for flight in flights if flight.begun()]
        transfer.cancel()
        raise
    finally:
        order.close(fence)
    return transfer


class How(NamedTuple):
    """What C is told of a native transfer beside what it moves."""

    mask: int  # of providers
    deadline: int = 0
    notify: Any = None
    fence: Any = ffi.NULL
    words: tuple[int, int] = (0, 0)  # what is added or swapped in, and what is expected


def call_with_batch(call: Any, flight: Flight, part: Part, how: How) -> None:
    """Lets C make the flight's native transfer of the part's ranges."""
    batch = ffi.new(_BATCH)
    remotes = ffi.from_buffer(_REMOTES, part.remotes())
    tables = part.keys()
    keys = ffi.from_buffer(_KEYS, tables) if tables else ffi.NULL
    packed = part.ranges[0] if len(part.ranges) == 1 else b"".join(part.ranges)
    ranges = ffi.from_buffer(_RANGES, packed)
    outers = ffi.from_buffer(_OUTERS, b"".join(part.outers))
    batch.op = part.op
    batch.providers = how.mask
    batch.remotes = remotes
    batch.ranges = ranges
    batch.keys = keys
    batch.n_keys = len(tables) // KEY_BYTES
    batch.n_remotes = len(part.owners)
    batch.n_ranges = len(packed) // RANGE.size
    batch.outers = outers
    batch.n_outers = part.n_outers
    batch.deadline_ns = how.deadline
    batch.operand, batch.expected = how.words
    batch.fence = how.fence
    if how.notify is not None:
        batch.notify = how.notify
        batch.notify_length = len(how.notify)
    record = flight.record
    check(call(record.native.pointer, batch, flight.out), peer=record.name, op=flight.op)
    flight.pointer = flight.out[0]


def flight_of(part: Part, record: PeerRecord) -> Flight:
    """One that C has not begun."""
    return Flight(ffi.new(_OUT), record, OP_NAMES[part.op])


def allowed(core: Core, record: PeerRecord, options: Options) -> int:
    """The providers that may carry it, as bits; to itself an engine copies, if none is required."""
    own = 1 << SELF if record.incarnation == core.incarnation else 0
    if options.provider is None and options.fallback is None:
        return core.paths.all | own
    attached: tuple[str, ...] = ()
    if options.provider is None and options.fallback == "error":
        if own:
            return own
        attached = when_up(core, record).providers  # what is attached is known only then
    mask = core.paths.mask(options.provider, options.fallback, attached)
    required = options.provider is not None and options.fallback != "allow"
    return mask if required else mask | own


def when_up(core: Core, record: PeerRecord, timeout: float | None = None) -> PeerRecord:
    """Waits until it is connected. Raises why it is not; DeadlineExceeded after `timeout`."""
    end = time.monotonic() + (_LONGEST if timeout is None else timeout)
    while not core.gate.closed:
        try:
            record.ready.result(_LOOK)
        except concurrent.futures.TimeoutError:
            if time.monotonic() > end:
                words = f"peer {record.name} is not connected after {timeout:g} s"
                raise DeadlineExceeded(words) from None
        else:
            record.check()
            return record
    raise InvalidUse("this engine is closed")


def who_notifies(parts: list[Part]) -> list[Part]:
    """Of each peer the writes, or the reads where there are no writes."""
    writes = [part for part in parts if part.op == WRITE]
    written = {part.owner.incarnation for part in writes}
    reads = [part for part in parts if part.op == READ and part.owner.incarnation not in written]
    return writes + reads


def checked_notify(notify: bytes | None) -> Any:
    """As C takes it, or None. Raises InvalidUse."""
    if notify is None:
        return None
    try:
        data = ffi.from_buffer(_BYTES, notify)
    except (TypeError, ValueError, BufferError):
        raise InvalidUse(
            f"a notification is contiguous bytes, not {type(notify).__name__}"
        ) from None
    if len(data) > _MAX_NOTIFY:
        raise InvalidUse(f"a notification has at most {_MAX_NOTIFY} bytes, not {len(data)}")
    return data


def deadline_ns(core: Core, deadline: float | None) -> int:
    """When the transfer fails, in ns of CLOCK_MONOTONIC."""
    lifetime = lifetime_ns(core, deadline)
    return lifetime if lifetime == _NO_DEADLINE else int(lib.tn_now()) + lifetime


def lifetime_ns(core: Core, deadline: float | None) -> int:
    """How long it may take."""
    seconds: Any = core.settings.deadline if deadline is None else deadline
    if not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise InvalidUse(f"a deadline is a number of seconds from now, not {seconds!r}")
    return _NO_DEADLINE if seconds > _LONGEST else int(seconds * 1e9)
