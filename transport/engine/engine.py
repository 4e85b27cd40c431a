"""The engine: one per process that wants one, and the way to everything else.

May import everything below. Reads and writes are one-sided: the peer's Python takes no part.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import signal
import socket
import sys
import threading
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from transport.config import Settings
from transport.engine import allocate, atomics, factories
from transport.engine.adopt import Adopted, adopt
from transport.engine.batch import READ, WRITE, Read, Write, not_remote
from transport.engine.copies import Copies
from transport.engine.core import Core
from transport.engine.grant import Grant
from transport.engine.mapping import Mapping, map_remote
from transport.engine.notifications import Notifications
from transport.engine.peer import Peer
from transport.engine.prepared import Prepared, prepare
from transport.engine.submit import Options, submit, when_up
from transport.errors import InvalidUse
from transport.ffi.handle import Handle
from transport.memory.device import parse as parse_device
from transport.memory.host import view
from transport.memory.region import Region
from transport.memory.remote import RemoteRegion
from transport.types import Access, check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from transport.control.secret import Source
    from transport.engine.atomics import AtomicTransfer
    from transport.engine.blocks import Blocks
    from transport.engine.rail import Rail
    from transport.engine.transfer import Transfer
    from transport.memory.host import View


class Engine(Handle):
    """Moves bytes between memory here and regions of other engines.

    `listen` says where peers find it: by default only on this host and by this user; "HOST:PORT"
    adds TCP, "unix:PATH" a socket file. `secret` is the job's shared secret (text, bytes or a
    Path); False is none. `providers` are the ways to move bytes, most wanted first: "tcp" or
    ["verbs", "tcp"]. `progress` is how a caller waits: "adaptive" polls for as long as a sleep
    would cost and then sleeps, "poll" never sleeps, "event" sleeps at once. `verbs_context` are
    RDMA devices that are open already (pyverbs Contexts, or addresses of struct ibv_context): verbs
    then uses these and no others, keeps them alive, and leaves closing them to their owner, after
    the engine. What is not given comes from the settings (TRANSPORT_*).
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        listen: str | Iterable[str] | None = None,
        advertise: str | None = None,
        secret: Source = None,
        providers: str | Iterable[str] | None = None,
        progress: str | None = None,
        settings: Settings | None = None,
        verbs_context: Any = None,
    ) -> None:
        settings = settings or Settings.from_env()
        if progress is not None:
            settings = dataclasses.replace(settings, progress=progress)
        if isinstance(providers, str):
            providers = [name.strip() for name in providers.split(",")]
        if name is not None:
            _check_name(name)
        self._core = Core(
            name=name or f"{socket.gethostname()}:{os.getpid()}",
            listen=listen,
            advertise=advertise,
            secret=secret,
            providers=settings.providers if providers is None else tuple(providers),
            settings=settings,
            verbs_context=verbs_context,
        )
        self._open()
        _living.add(self._core)
        _warn_of_sharing()

    # --------------------------------------------------------------------------------------- facts
    @property
    def name(self) -> str:
        """What peers call this engine; by default host name and process number."""
        return self._core.name

    @property
    def incarnation(self) -> bytes:
        """16 random bytes that name this life of the engine."""
        return self._core.incarnation

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens, as `connect` takes them; they go into every handle."""
        return self._core.plane.addresses

    @property
    def providers(self) -> tuple[str, ...]:
        """The usable ones, most wanted first."""
        return tuple(self._core.paths.identifiers)

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The engines that this one knows and has not lost."""
        with self._core as core:
            return tuple(Peer(self, core, record) for record in core.plane.peers)

    def rails(self) -> list[Rail]:
        """The NIC ports that it uses for RDMA, as they are now; empty without `verbs`.

        A `Peer` has the queue pairs to it, by rail (`Peer.lanes`).
        """
        with self._core as core:
            return core.rails()

    # -------------------------------------------------------------------------------------- memory
    def register(
        self,
        x: Any,
        *,
        access: Access | str = "read-write",
        progress: Callable[[int, int], object] | None = None,
    ) -> Region:
        """Lets peers use the memory of a tensor, array or buffer, by the handle of the region.

        Memory that cannot be written to, a file mapped read-only say, gives a region that can only
        be read; asking to "write" it raises InvalidUse. RDMA pins the memory, which takes seconds
        for hundreds of gigabytes: `progress` is called meanwhile, in this thread, with the bytes
        that are done and all; Ctrl-C, or an exception that it raises, leaves nothing registered.
        """
        return self._register(view(x), Access.parse(access), progress)

    def grant(self, things: Iterable[Any], *, access: Access | str = "read-write") -> Grant:
        """Lets peers use many tensors or arrays, by the handles of the grant, one for each.

        What is granted twice, or overlaps, is registered once: storages are registered whole, when
        the first grant of a part of them is made, and are closed with the last. Raises what
        `register` raises, with nothing granted.
        """
        wanted = Access.parse(access)
        gathered = list(things)
        with self._core as core:
            shares = core.shares
        register = partial(self._register, wanted=wanted, progress=None)
        return Grant(self, shares, gathered, wanted, register)

    @property
    def regions(self) -> tuple[Region, ...]:
        """Those that are open, whoever keeps them; a grant has one for each storage."""
        with self._core as core:
            return core.open_regions()

    def empty(
        self,
        shape: int | Sequence[int],
        dtype: Any,
        *,
        device: Any = "cpu",
        access: Access | str = "read-write",
    ) -> Any:
        """A new tensor (torch dtype) or array (numpy dtype or name) that peers here can map.

        Uninitialised. Register it with the same `access` (or parts of it) to have it used in
        place. With `device` "cuda", "cuda:N" ("hip" is the same) or N it is memory of that GPU,
        shareable with processes of this host and with NICs: a torch tensor, or a GpuArray, which
        others take by DLPack or `__cuda_array_interface__`. Raises NativeError where memory is
        short, Unavailable where there is no GPU.
        """
        wanted, gpu = Access.parse(access), parse_device(device)
        with self._core as core:
            if gpu is not None:
                return allocate.empty_on(core.gpu_pool, shape, dtype, gpu)
            return allocate.empty(core.pool, shape, dtype, wanted)

    def pool(self, *, access: Access | str = "read-write") -> AbstractContextManager[Any]:
        """`with engine.pool():` torch's CPU factory functions give tensors as `empty` does.

        They are empty, zeros, ones, full, rand, randn, randint, randperm, arange, tensor and their
        like, `*_like` and `new_*`, and with them what `nn.Module`s make of themselves. All of
        their arguments count; what is asked for on another device, with `out=`, in another layout
        or in pinned memory is as it would be without. The block holds for this thread; it may be
        nested, and the innermost counts. The tensors cannot be resized to more bytes than they
        have. Memory that is short raises NativeError. Imports torch.
        """
        wanted = Access.parse(access)
        with self._core as core:
            mode: AbstractContextManager[Any] = factories.pool(core, wanted)
        return mode

    def adopt(self, what: Any, *, access: Access | str = "read-write") -> Adopted:
        """Moves existing tensors into memory that peers on this host can map, in place.

        `what` is an `nn.Module` (its parameters and buffers), a state dict, a tensor, or lists and
        dicts of these. The tensor objects stay the same, with their strides and offsets: optimizers
        keep working, tied parameters stay tied, and a storage that several tensors share moves
        once. What is there already, with this `access`, stays: a second call moves nothing.

        Raises InvalidUse, before anything has moved, for tensors that are not ordinary CPU tensors,
        are registered or in transfer, are shared with other processes, or share their storage with
        tensors that were not given (so that these would be left behind: pass the module rather
        than its `state_dict()`). Raises NativeError when memory is short: what was moved until then
        is whole, and another call goes on with the rest. Imports torch.
        """
        wanted = Access.parse(access)
        with self._core as core:
            return adopt(core, what, wanted)

    def map(self, remote: RemoteRegion, *, timeout: float | None = None) -> Mapping:
        """Maps memory of a peer on this host, instead of copying it.

        `remote` is a region, or a part of one, in pool memory (`empty`, `pool`, `adopt`) that may
        be read. Raises Unavailable, with the reason, where it cannot be mapped; StaleRegion; and
        what connecting raises, within `timeout` seconds (default: the setting connect_timeout).
        """
        given: Any = remote
        if not isinstance(given, RemoteRegion):
            raise not_remote(given)
        limit = check_timeout(timeout)
        with self._core as core:
            record = core.plane.peer(remote.incarnation, remote.addresses)
        when_up(core, record, limit)
        return map_remote(core, record, remote, limit)

    # ----------------------------------------------------------------------------------- transfers
    def read(
        self,
        remote: RemoteRegion | Blocks,
        into: Any,
        *,
        deadline: float | None = None,
        provider: str | None = None,
        fallback: str | None = None,
        stream: Any = None,
    ) -> Transfer:
        """Begins to bring what `remote` names into local memory.

        dtype and shape must match where both sides have them, else the sizes. Either may be
        `Blocks`: any number of blocks, given by arrays. After `deadline`
        seconds (default: the setting) it fails. `provider`, `fallback` and `stream`: see `submit`.
        """
        with self._core as core:
            batch = core.batch(provider)
            batch.add(into, remote, READ)
            return submit(self, core, batch, Options(None, deadline, provider, fallback, stream))

    def write(
        self,
        source: Any,
        to: RemoteRegion | Blocks,
        *,
        notify: bytes | None = None,
        deadline: float | None = None,
        provider: str | None = None,
        fallback: str | None = None,
        stream: Any = None,
    ) -> Transfer:
        """Begins to bring local memory to where `to` names.

        With `notify` the owner gets a notification (at most 1024 bytes) once the data is there.
        """
        with self._core as core:
            batch = core.batch(provider)
            batch.add(source, to, WRITE)
            return submit(self, core, batch, Options(notify, deadline, provider, fallback, stream))

    def submit(
        self,
        requests: Iterable[Read | Write | Copies],
        *,
        notify: bytes | None = None,
        deadline: float | None = None,
        provider: str | None = None,
        fallback: str | None = None,
        stream: Any = None,
    ) -> Transfer:
        """Begins any number of reads and writes with any number of peers, as one transfer.

        Nothing is moved if one of them is refused. No order is promised among them. With `notify`
        each peer gets one notification, after all writes to it (or, where there are none, all
        reads from it), which names the region of the first. `provider` requires one; then
        `fallback="allow"` lets those after it in the engine's order carry it, too. Without
        `provider`, `fallback="error"` allows only the peer's most wanted one.

        `stream` is a stream of a GPU (torch's, an object with `__cuda_stream__`, or its handle):
        the transfer begins once all is done that was put into it before. Memory of a GPU follows
        the GPU's current stream (torch's, or the default stream without torch) where none is given.
        No call waits for it. Only the local side has an order: see docs/explanation/gpu-memory.
        """
        gathered = list(requests)  # outside the gate: a generator may do anything
        with self._core as core:
            batch = core.batch(provider)
            for request in gathered:
                batch.add_request(request)
            return submit(self, core, batch, Options(notify, deadline, provider, fallback, stream))

    def prepare(
        self,
        requests: Read | Write | Copies | Iterable[Read | Write | Copies],
        *,
        notify: bytes | None = None,
        deadline: float | None = None,
        provider: str | None = None,
        fallback: str | None = None,
    ) -> Prepared:
        """Checks any number of reads and writes, to start them again and again, cheaply.

        The arguments are those of `submit`; `deadline` and `notify` are each run's. Raises what
        `submit` raises; nothing moves before `start()` or `run()`.
        """
        alone = isinstance(requests, (Read, Write, Copies))
        gathered: list[Any] = [requests] if alone else list(requests)  # type: ignore[arg-type]
        with self._core as core:
            return prepare(self, core, gathered, Options(notify, deadline, provider, fallback))

    def fetch_add(
        self,
        remote: RemoteRegion,
        value: int,
        *,
        deadline: float | None = None,
        provider: str | None = None,
    ) -> AtomicTransfer:
        """Begins to add `value` to a word in a peer's memory; `.value` is what was there before.

        `remote` is one int64 or uint64 (or 8 bytes), aligned, of a region that may be read and
        written; the sum wraps round. Only `verbs` carries it, and only where both devices have
        atomic operations. It is atomic among RDMA operations on that device, and not towards the
        owner's CPUs unless the device says so (IBV_ATOMIC_GLOB).

        When the queue pair fails on the way, the outcome is unknown: it fails saying so and is not
        repeated.
        """
        with self._core as core:
            options = Options(None, deadline, provider, None)
            return atomics.fetch_add(self, core, remote, value, options)

    def compare_swap(
        self,
        remote: RemoteRegion,
        expected: int,
        desired: int,
        *,
        deadline: float | None = None,
        provider: str | None = None,
    ) -> AtomicTransfer:
        """As `fetch_add`, but writes `desired` if `expected` is there: if `.value == expected`."""
        with self._core as core:
            options, words = Options(None, deadline, provider, None), (expected, desired)
            return atomics.compare_swap(self, core, remote, words, options)

    def notifications(self) -> Notifications:
        """What peers have notified this engine of."""
        self._check()
        return Notifications(self, self._core)

    # --------------------------------------------------------------------------------------- peers
    def connect(self, address: str, *, timeout: float | None = None) -> Peer:
        """The engine that listens there. Handles need no connect: they carry addresses.

        Raises DeadlineExceeded, PeerLost, PeerRefused or VersionMismatch.
        """
        limit = check_timeout(timeout)
        with self._core as core:
            plane = core.plane
        return Peer(self, core, plane.connect(address, limit))  # outside: it may take its time

    def publish(self, name: str, what: Region | RemoteRegion) -> None:
        """Lets peers find a handle by name (`Peer.lookup`). The region must be kept open."""
        remote = what.remote() if isinstance(what, Region) else what
        with self._core as core:
            core.names.publish(name, remote)

    def close(self) -> None:
        """Fails what is in flight, revokes every region, lets the peers go. Idempotent.

        Called by a signal handler that interrupts a call of this engine, it returns at once and the
        closing goes on behind it.
        """
        if self._closed:
            return
        self._closed = True
        if self._core.gate.holds_this_thread():  # a signal handler, or a finalizer
            self._core.close_later()
        else:
            self._core.close_undisturbed()
            _living.discard(self._core)

    # -------------------------------------------------------------------------------------- inside
    def _register(
        self, found: View, wanted: Access, progress: Callable[[int, int], object] | None
    ) -> Region:
        with self._core as core:
            backing = core.regions.backing(found)
            wanted = _allowed(wanted, found.readonly or not backing.writable)
            region = Region(self, core.regions, core.identity, found, wanted, backing, progress)
            core.remember(region)
        return region

    def _hand_over(self) -> None:
        self._core.close_later()

    def _ended(self) -> bool:
        return self._core.native.pointer is None  # at exit, or after it was dropped

    def _describe(self) -> str:
        return self._core.name


def _allowed(wanted: Access, readonly: bool) -> Access:
    """What can be offered of the memory. Raises InvalidUse where nothing of it can."""
    if wanted is Access.WRITE and readonly:
        raise InvalidUse("the memory is read-only; register it with access='read'")
    return Access.READ if readonly else wanted


def check_engine(engine: Any) -> None:
    """For rooms above. Raises InvalidUse for what is no engine."""
    if not isinstance(engine, Engine):
        raise InvalidUse(f"an Engine is wanted, not a {type(engine).__name__}")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name.encode("utf-8", "replace").decode() != name:
        raise InvalidUse(f"an engine's name is text that UTF-8 can write, not {name!r:.80}")


_living: set[Core] = set()
"""Engines that are open, by their inside: an Engine that is dropped must still be closed."""


def _close_all() -> None:
    """At exit: peers hear that we leave, and nothing of ours runs while Python is taken apart."""
    while True:
        try:
            if threading.get_ident() == threading.main_thread().ident:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # it takes seconds at most
            for core in list(_living):
                core.close()
        except KeyboardInterrupt:  # once more, just before it was ignored
            continue
        return


_sharing = False
"""This process was forked from one with tensors in shared memory, and has not been warned."""


def _after_fork_in_child() -> None:
    """The engines here belong to the parent: nothing of C may be touched, closed or freed."""
    global _sharing
    _sharing = any(core.pool.used_bytes for core in _living)
    _living.clear()
    # Most children run another program at once. One of multiprocessing goes on with our objects.
    util = sys.modules.get("multiprocessing.util")
    if _sharing and util is not None:
        util.register_after_fork(_living, lambda _: _warn_of_sharing())


def _warn_of_sharing() -> None:
    global _sharing
    if _sharing:
        _sharing = False
        warnings.warn(
            "this process was forked from one whose tensors lie in shared memory: writing to them"
            " here changes the parent's; use the spawn start method",
            RuntimeWarning,
            stacklevel=3,
        )


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
