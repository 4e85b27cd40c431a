"""The inside of an engine: what its public objects share, and how it all is opened and closed.

May import everything below the engine room. Public objects hold the Engine, the Engine holds this;
the control thread holds only this, so that an Engine that nobody holds can be seen to be dropped.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from transport.control.plane import Callbacks, ControlPlane, Self
from transport.control.secret import resolve
from transport.engine.batch import Batch
from transport.engine.grant import Shares
from transport.engine.names import Names
from transport.engine.path import Paths
from transport.engine.progress import Queues
from transport.engine.rail import Rail, rail_of
from transport.errors import InvalidUse, Status, TransportError, Unavailable
from transport.ffi import NativeEngine, check, ffi, handle, lib
from transport.ffi.gate import Gate
from transport.memory import driver
from transport.memory.cache import LocalCache
from transport.memory.gpu_cache import GpuCache
from transport.memory.gpu_pool import GpuPool
from transport.memory.pool import Pool
from transport.memory.region import RegionTable
from transport.memory.registering import Manner
from transport.memory.words import Words
from transport.providers import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transport.config import Settings
    from transport.control.records import PeerRecord
    from transport.control.secret import Source
    from transport.memory.host import View
    from transport.memory.region import Region
    from transport.memory.remote import Owner
    from transport.providers.base import Endpoint, Provider

_log = logging.getLogger("transport.engine")

_HUGE_PAGES = {"none": 0, "transparent": 1, "reserved": 2}  # enum tn_huge_pages
_PROGRESS = {"adaptive": 0, "poll": 1, "event": 2}  # enum tn_progress_mode
_GPU_DIRECT = {"prefer": 0, "require": 1, "off": 2}  # enum tn_gpu_direct
_PATIENCE = 10.0  # seconds beyond the close timeout for callers to leave

# Native things that could not be freed: their memory may still be written. Kept for ever.
_lost: list[Any] = []


class Flight:
    """One native transfer: all requests of one kind to one peer.

    It is in its Transfer's list before C begins, with `out` for C to fill in: an exception that a
    signal handler raises right after the call loses no native transfer, which would go on moving
    bytes in memory that nobody keeps.
    """

    __slots__ = ("op", "out", "pointer", "record")

    def __init__(self, out: Any, record: PeerRecord, op: str) -> None:
        self.out = out  # struct tn_transfer **
        self.pointer: Any = None  # struct tn_transfer *
        self.record = record
        self.op = op

    def begun(self) -> bool:
        """Whether C has begun it; `pointer` is set then."""
        self.pointer = self.out[0]
        return bool(self.pointer)


class Core:
    """`with core:` lets a call in, unless closed or forked, and does what finalizers left."""

    def __init__(
        self,
        *,
        name: str,
        listen: str | Iterable[str] | None,
        advertise: str | None,
        secret: Source,
        providers: Iterable[str],
        settings: Settings,
        verbs_context: Any = None,
    ) -> None:
        self.settings = settings
        self.name = name
        self.incarnation = os.urandom(16)
        self.gate = Gate("engine")
        self.unused: dict[str, str] = {}  # providers that are not used, and why
        driver.choose(settings)
        found = _find_providers(providers, settings, self.unused, verbs_context)
        identifiers = {provider.name: provider.identifier for provider in found}
        self.paths = Paths(identifiers, self.unused)
        self.native = _open_native(self.incarnation, settings, self.paths)
        self.dropped: deque[tuple[list[Flight], list[Any]]] = deque()  # by finalizers
        self._abandoned: dict[int, tuple[Flight, list[Any], list[Flight]]] = {}
        # What must live until it is quiet, by id. A Transfer's own reference is not enough: Ctrl-C
        # may keep its finalizer from handing over what it has.
        self.pinned: dict[int, list[Any]] = {}
        self._cookies = itertools.count(1)
        self._close_lock = threading.Lock()
        self._endpoints: dict[str, Endpoint] = {}
        self.pool = Pool(self.native.pointer)
        self.regions = RegionTable(self.native.pointer, self.pool, self.gate)
        self.regions.close_timeout = settings.close_timeout
        self.cache: LocalCache | None = None
        self.gpu_cache = GpuCache(self.regions)
        self.gpu_pool = GpuPool()
        self.words = Words(self.regions)
        self.queues = Queues(self)
        self.shares = Shares()
        # Called on the control thread with each peer that is lost; must return at once.
        self.on_lost: list[Callable[[PeerRecord], object]] = []
        self._regions_by_number: weakref.WeakValueDictionary[int, Region] = (
            weakref.WeakValueDictionary()
        )
        self.control: ControlPlane | None = None
        try:
            self._open_endpoints(found)
            me = Self(self.incarnation, name, listen, advertise)
            self.control = self._open_control(me, secret)
            self.names = Names(self)
        except BaseException:
            self.close()
            raise

    def _open_control(self, oneself: Self, secret: Source) -> ControlPlane:
        return ControlPlane(
            self.native,
            self.settings,
            oneself=oneself,
            secret=resolve(secret, self.settings),
            endpoints=self._endpoints,
            absent={**registry.left_out(self.paths.identifiers), **self.unused},
            callbacks=Callbacks(
                on_retired=self._on_retired,
                on_provider=self._on_provider_changed,
                on_lost=self._on_lost,
            ),
        )

    # ------------------------------------------------------------------------------- calls come in
    def __enter__(self) -> Core:
        self.gate.__enter__()
        if self.dropped or self.pool.has_chores or self.regions.has_chores or self._cache_chores():
            self.drain()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.__exit__()

    def _cache_chores(self) -> bool:
        if self.gpu_cache.has_chores or self.gpu_pool.has_chores:
            return True
        return self.cache is not None and self.cache.has_chores

    def identity(self) -> tuple[bytes, tuple[str, ...]]:
        """What goes into handles."""
        return self.incarnation, self.plane.addresses

    def remember(self, region: Region) -> None:
        """So that notifications can name it."""
        self._regions_by_number[region.number] = region

    def open_regions(self) -> tuple[Region, ...]:
        regions = list(self._regions_by_number.values())
        return tuple(region for region in regions if not region.closed)

    def region(self, number: int) -> Region | None:
        return self._regions_by_number.get(number)

    def registrar(
        self, owner: Owner, provider: str | None = None
    ) -> Callable[[View, list[Any]], int] | None:
        """What registers local memory for transfers with that engine, where it is needed: RDMA.

        `provider` is the one that the transfer must use, if one is named.
        """
        if self.cache is None:
            return None
        record = self.plane.peer(owner.incarnation, owner.addresses)
        # While the peer is being connected it is not known how it will be reached.
        if not record.ready.done():
            return self.cache.register
        first = next(iter(record.providers), "")
        needed = "verbs" in record.providers and (provider or first) == "verbs"
        return self.cache.register if needed else None

    def batch(self, provider: str | None = None) -> Batch:
        """A new one, for transfers that must use the provider, if one is named."""
        return Batch(partial(self.registrar, provider=provider), self.gpu_cache.register)

    def rails(self) -> list[Rail]:
        """Within the gate."""
        endpoint: Any = self._endpoints.get("verbs")
        stats = endpoint.stats() if endpoint is not None else []
        return [rail_of(number, port, native) for number, (port, native) in enumerate(stats)]

    @property
    def plane(self) -> ControlPlane:
        if self.control is None:
            raise InvalidUse("this engine is closed")
        return self.control

    def drain(self) -> None:
        """Does what finalizers left to do."""
        while self.dropped:
            try:
                flights, pins = self.dropped.popleft()
            except IndexError:  # another thread took it
                break
            waiting = list(flights)
            for flight in flights:
                if pins:
                    self._abandon(flight, pins, waiting)
                else:  # it ended well, or was seen to be quiet
                    lib.tn_transfer_release(flight.pointer)
        if self.cache is not None:
            self.cache.drain()
        if self.gpu_cache.has_chores:
            self.gpu_cache.drain()
        self.regions.drain()
        self.pool.drain()
        if self.gpu_pool.has_chores:
            self.gpu_pool.drain()

    def drop(self, flights: list[Flight], pins: list[Any]) -> None:
        """For a Transfer's finalizer: frees it now or, while it may still move bytes, later."""
        if self.gate.pid != handle.here:
            return
        for flight in flights:
            if flight.pointer is None:  # interrupted before it was set, or before C began
                flights = [flight for flight in flights if flight.begun()]
                break
        if not flights:
            self.pinned.pop(id(pins), None)
            return
        self.dropped.append((flights, pins))
        if self.native.pointer is None:  # no call comes that would do it
            self._free_dropped()
        elif pins and self.control is not None:
            self.control.poke(self._drain_quietly)

    # ------------------------------------------------------------------------------------- closing
    def close(self) -> None:
        """Fails what is in flight, takes all rights back, frees everything. Idempotent."""
        if self.gate.pid != handle.here:
            return
        with self._close_lock:
            if self.native.pointer is None:
                return
            empty = self.gate.shut(self.settings.close_timeout + _PATIENCE)
            self.queues.detach()
            if self.control is not None:
                empty = self.control.close() and empty
            self.words.close()
            if self.cache is not None:
                self.cache.close_all()
            self.gpu_cache.reclaim()
            _lost.extend(self.regions.close_all(self.settings.close_timeout))
            self.pool.close()
            self.gpu_pool.close()
            if empty:
                lib.tn_engine_close(self.native.pointer)
            else:  # better lost than freed under a caller
                _log.error("a call into engine %s does not end; its memory is lost", self.name)
                _lost.append((self.native.pointer, self.pinned.copy()))
            self.native.pointer = None
            self._close_endpoints()
            self._bury()
            self.queues.finish()

    def close_undisturbed(self) -> None:
        """As `close`, but Ctrl-C, which comes to the main thread, leaves nothing half closed."""
        if threading.get_ident() != threading.main_thread().ident:
            self.close()
            return
        errors: list[BaseException] = []
        closer = threading.Thread(
            target=self._close_and_tell, args=(errors,), name="transport-closer", daemon=True
        )
        try:
            closer.start()
        except RuntimeError:  # no more threads
            self.close()
            return
        closer.join()  # Ctrl-C ends the wait; the closing goes on
        for error in errors:
            raise error

    def _close_and_tell(self, errors: list[BaseException]) -> None:
        try:
            self.close()
        except BaseException as error:
            errors.append(error)

    def close_later(self) -> None:
        """For finalizers and signal handlers, which must not wait for what they interrupt."""
        # Not threading.Thread, whose start() waits and takes locks that this may have interrupted.
        with contextlib.suppress(RuntimeError):  # Python ends, and has closed everything before
            _thread.start_new_thread(self.close, ())

    def _bury(self) -> None:
        """After the native engine: transfers that nobody waits for."""
        self._free_dropped()
        for flight, pins, _ in self._abandoned.values():
            self._free(flight, pins)
        self._abandoned.clear()
        self.pinned.clear()

    def _free_dropped(self) -> None:
        while self.dropped:
            try:
                flights, pins = self.dropped.popleft()
            except IndexError:  # another thread took it
                return
            for flight in flights:
                self._free(flight, pins)

    def _free(self, flight: Flight, pins: list[Any]) -> None:
        if lib.tn_transfer_quiet(flight.pointer):
            lib.tn_transfer_release(flight.pointer)
        else:
            _lost.append((flight, pins))

    def _abandon(self, flight: Flight, pins: list[Any], waiting: list[Flight]) -> None:
        cookie = next(self._cookies)
        self._abandoned[cookie] = flight, pins, waiting  # before: the event may be quicker than we
        if lib.tn_transfer_abandon(flight.pointer, cookie) == Status.OK:
            self._on_retired(cookie)

    def _on_retired(self, cookie: int) -> None:
        flight, pins, waiting = self._abandoned.pop(cookie)
        lib.tn_transfer_release(flight.pointer)
        waiting.remove(flight)
        if not waiting:  # the last one of the transfer
            self.pinned.pop(id(pins), None)

    def _on_provider_changed(self, identifier: int) -> None:
        name = next((n for n, i in self.paths.identifiers.items() if i == identifier), "")
        endpoint = self._endpoints.get(name)
        changed = getattr(endpoint, "changed", None)  # most providers have no use for it
        if changed is not None:
            changed()

    def _on_lost(self, record: PeerRecord) -> None:
        for callback in list(self.on_lost):
            callback(record)

    def _drain_quietly(self) -> None:
        """On the control thread, which must not end because the engine is being closed."""
        with contextlib.suppress(InvalidUse), self:
            pass

    def _open_endpoints(self, found: list[Provider]) -> None:
        for provider in found:
            try:
                self._endpoints[provider.name] = provider.open(self.native, self.settings)
            except TransportError as error:
                self.unused[provider.name] = str(error)
                _log.warning("provider %s is not used: %s", provider.name, error)
        if not self._endpoints:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.unused.items())
            raise Unavailable(f"no provider can be used: {reasons or 'none was asked for'}")
        if "verbs" in self._endpoints:
            self.cache = LocalCache(self.regions)
            near = self._endpoints["verbs"].near  # type: ignore[attr-defined]
            self.regions.nearest, self.regions.nearest_gpu = near.of_memory, near.of_gpu
            self.words.registered = True
            self._register_with_care(self.cache)

    def _register_with_care(self, cache: LocalCache) -> None:
        """As devices that pin what they register need it."""
        settings = self.settings
        self.regions.reclaim = lambda: any([cache.reclaim(), self.gpu_cache.reclaim()])
        self.regions.manner = Manner(
            settings.register_threads, settings.register_prefault, settings.register_step
        )

    def _close_endpoints(self) -> None:
        for endpoint in reversed(self._endpoints.values()):
            endpoint.close()


def _find_providers(
    names: Iterable[str], settings: Settings, unused: dict[str, str], verbs_context: Any = None
) -> list[Provider]:
    """The usable ones, in order. A name that is unknown is the caller's mistake."""
    found: list[Provider] = []
    names = tuple(names)
    if verbs_context is not None and "verbs" not in names:
        raise InvalidUse('verbs_context= is of no use without the provider "verbs"')
    for name in names:
        provider: Any = registry.find(name)
        if name == "verbs" and verbs_context is not None:
            provider = provider.adopting(verbs_context, settings)
        viability = provider.probe(settings)
        if viability.usable:
            found.append(provider)
        else:
            unused[name] = f"{viability.reason}; {viability.remedy}".strip("; ")
            _log.debug("provider %s is not used: %s", name, unused[name])
    return found


def _open_native(incarnation: bytes, settings: Settings, paths: Paths) -> NativeEngine:
    options = ffi.new("struct tn_engine_options *")
    options.incarnation = incarnation
    options.liveness_ns = int(settings.liveness * 1e9)
    options.inline_bytes = settings.inline_bytes
    options.chunk_bytes = settings.chunk_bytes
    options.notify_depth = settings.notify_depth
    options.max_regions = settings.max_regions
    options.stream_window = settings.stream_window
    options.stream_threads = settings.tcp_threads
    options.copy_threads = settings.copy_threads
    options.stream_buffer = settings.tcp_buffer
    numbers = list(paths.identifiers.values())
    options.order[0 : len(numbers)] = numbers
    options.providers = len(numbers)
    options.huge_pages = _HUGE_PAGES[settings.huge_pages]
    options.progress = _PROGRESS[settings.progress]
    options.gpu_direct = _GPU_DIRECT[settings.gpu_direct]
    out = ffi.new("struct tn_engine **")
    check(lib.tn_engine_open(options, out))
    return NativeEngine(out[0])
