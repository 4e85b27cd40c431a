"""Ray Direct Transport: tensors of Ray objects move one-sided, from the actor that made them.

May import every room, and Ray, of which only the public interface is used. Ray calls a manager from
several threads: the task's, where an object is made or fetched, and those of its own, where task
arguments arrive and objects are freed.

A small tensor is copied into one block with the other small ones of its object: describing it to a
peer costs more than the copy. All others are read where they lie.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import threading
import weakref
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.config import Settings
from transport.control.address import TcpAddress
from transport.engine.batch import Read
from transport.engine.engine import Engine
from transport.errors import InvalidUse, PeerError, TransportError, Unavailable
from transport.memory.host import view

try:
    import ray
    from ray.experimental import internal_kv, register_tensor_transport
    from ray.experimental.rdt.tensor_transport_manager import (
        CommunicatorMetadata,
        FetchRequest,
        TensorTransportManager,
        TensorTransportMetadata,
    )
except ImportError as error:
    raise Unavailable(
        f"Ray cannot be imported, or is too old: {error}", "pip install 'tensor-transport[ray]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from transport.engine.grant import Grant
    from transport.engine.transfer import Transfer
    from transport.memory.host import View
    from transport.memory.remote import RemoteRegion

    Cutter = Callable[..., Any]  # start in bytes, shape, dtype, and strides in bytes

__all__ = ["engine", "register"]

SMALL = 64 << 10
"""Tensors of up to so many bytes travel in their object's block."""

_SHORT = 256  # bytes; what is strided more finely is copied into the block, too
_ALIGN = 64  # of tensors in the block: the largest alignment that an instruction asks for
_SPACE = "tensor-transport"  # of the cluster's key-value store
_PATIENCE = "RAY_rdt_fetch_fail_timeout_milliseconds"  # Ray's own setting; its default is a minute
_MARGIN = 0.9  # of Ray's patience: our error, which names the peer, comes before Ray's

_lock = threading.Lock()
_made: tuple[str, Engine] | None = None  # the node of the cluster that it is for


def register() -> None:
    """Makes "TRANSPORT" (torch tensors) and "TRANSPORT_NUMPY" (numpy arrays) known to Ray.

    Call it before actors are made, and give it to Ray as the hook of its workers, so that actors
    know both after a restart, too, and whoever makes them:
    `ray.init(runtime_env={"worker_process_setup_hook": register})`. Idempotent.
    """
    with _lock:
        _register("TRANSPORT_NUMPY", ["cpu"], ArrayTransport, np.ndarray)
        try:
            import torch
        except ImportError:
            return
        _register("TRANSPORT", ["cpu", "cuda"], TensorTransport, torch.Tensor)


def engine() -> Engine:
    """The engine of this process, made at its first use, for this cluster.

    It listens on the node's address, with a secret that all processes of the cluster have from its
    control plane (or with the one in the settings). Use it for transfers of your own; do not close
    it. Raises InvalidUse where Ray is not up.
    """
    global _made
    if not ray.is_initialized():  # asked for its node, Ray would start a cluster
        raise InvalidUse("Ray is not up in this process; call ray.init first")
    node = ray.get_runtime_context().get_node_id()
    if _made is not None and _made[0] == node and not _made[1].closed:
        return _made[1]
    with _lock:
        if _made is None or _made[0] != node or _made[1].closed:
            before, _made = _made, (node, _open())
            if before is not None:  # of a cluster that this process has left
                before[1].close()
        return _made[1]


def _register(name: str, devices: list[str], manager: type[Any], data: type[Any]) -> None:
    try:
        register_tensor_transport(name, devices, manager, data)
    except ValueError as error:  # whoever made this actor has registered it
        if "already registered" not in str(error):
            raise


def _open() -> Engine:
    settings = Settings.from_env()
    own = settings.secret is not None or settings.secret_file is not None
    host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    here = ip_address(host)  # nobody elsewhere reaches a loopback: the unix socket is enough
    return Engine(
        name=_name(host),
        listen=None if here.is_loopback else str(TcpAddress(host, 0)),
        secret=None if own else _secret(),
        settings=settings,
    )


def _secret() -> bytes:
    """The cluster's: the first process of all makes it."""
    internal_kv._internal_kv_put("secret", secrets.token_hex(32), False, namespace=_SPACE)
    return bytes(internal_kv._internal_kv_get("secret", namespace=_SPACE))


def _name(host: str) -> str:
    """What errors call this process."""
    context = ray.get_runtime_context()
    actor = context.get_actor_id()
    what = f"actor {context.get_actor_name() or actor[:12]}" if actor else "process"
    return f"{what} (pid {os.getpid()} on {host})"


def _deadline() -> float:
    patience = float(os.environ.get(_PATIENCE, 60_000)) / 1000
    return min(Settings.from_env().deadline, _MARGIN * patience)


# ------------------------------------------------------------------------------------ what travels
@dataclass
class Metadata(TensorTransportMetadata):
    """Where an object's tensors are: at so many bytes in its block, or by handles of their own."""

    source: str = ""
    block: RemoteRegion | None = None
    places: list[int | RemoteRegion] = field(default_factory=list)


@dataclass
class Fetch(FetchRequest):
    """Tensors that are under way; one that is dropped before it was waited for is cancelled."""

    source: str = ""
    transfer: Transfer | None = None
    landed: list[tuple[Any, Any]] = field(default_factory=list)  # target, from where to copy it

    def __del__(self) -> None:
        if self.transfer is not None and not self.transfer.done:
            self.transfer.cancel()


class _Transport(TensorTransportManager):
    """What both kinds of data have in common. Ray makes one in each process, without arguments."""

    backend = ""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grants: dict[str, Grant] = {}  # by object
        self._flying: weakref.WeakValueDictionary[int, Fetch] = weakref.WeakValueDictionary()

    def tensor_transport_backend(self) -> str:
        return self.backend

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True  # asking it would cost a round trip for each call; without it, its task fails

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def send_multiple_tensors(
        self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any
    ) -> None:
        raise NotImplementedError("the receiver reads")

    # ----------------------------------------------------------------------------------- the source
    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Metadata:
        """Grants the tensors. Raises InvalidUse for what has no memory that peers could read."""
        if not rdt_object:
            return Metadata([])
        tensors = [self._plain(tensor) for tensor in rdt_object]
        same: dict[Any, Any] = {}  # one object for equal ones: pickle then writes it once
        pairs = [(tensor.shape, tensor.dtype) for tensor in tensors]
        meta = [same.setdefault(pair, pair) for pair in pairs]
        device, views = self._device(tensors), [view(tensor) for tensor in tensors]
        here, small = engine(), [device == "cpu" and _is_copied(it) for it in views]
        starts, size = _starts(views, small)
        lying = [tensor for tensor, copied in zip(tensors, small) if not copied]
        if size:
            lying.append(self._packed(here, tensors, views, starts, size))
        grant = here.grant(lying, access="read")
        handles = list(grant.handles)
        block = handles.pop().bytes() if size else None
        following = iter(handles)
        places = [next(following) if start is None else start for start in starts]
        with self._lock:
            before, self._grants[obj_id] = self._grants.get(obj_id), grant
        if before is not None:  # the task ran again
            before.close()
        return Metadata(meta, device, here.name, block, places)

    def garbage_collect(
        self, obj_id: str, tensor_transport_meta: Any, tensors: Sequence[Any]
    ) -> None:
        """Takes the handles back. When it returns nobody is at the tensors any more."""
        with self._lock:
            grant = self._grants.pop(obj_id, None)
        if grant is not None:
            grant.close()

    def _packed(
        self,
        here: Engine,
        tensors: list[Any],
        views: list[View],
        starts: list[int | None],
        size: int,
    ) -> Any:
        block = self._block(here, size)
        cut, base = self._cutter(block), view(block).address
        for tensor, found, start in zip(tensors, views, starts):
            if start is not None and found.contiguous:
                ctypes.memmove(base + start, found.address, found.nbytes)
            elif start is not None:
                self._copy(cut(start, tensor.shape, tensor.dtype), tensor)
        return block

    # --------------------------------------------------------------------------------- the receiver
    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: Any,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        fetch = self.fetch_multiple_tensors(
            obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
        )
        return self.wait_fetch_complete(fetch)

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: Any,
        target_buffers: list[Any] | None = None,
    ) -> Fetch:
        """Begins to read all tensors of an object, as one transfer."""
        meta: Metadata = tensor_transport_metadata
        here, fetch = engine(), Fetch(obj_id, [None] * len(meta.places), meta.source)
        block, reads = None, []
        if meta.block is not None and not target_buffers:
            block = self._block(here, meta.block.nbytes)
            reads.append(Read(meta.block, block))
        reads += self._reads(here, meta, target_buffers, fetch)
        try:
            fetch.transfer = here.submit(reads, deadline=_deadline())
        except TransportError as error:
            raise _named(error, fetch) from None
        self._flying[id(fetch)] = fetch
        if block is not None:  # while it is under way
            self._cut_all(block, meta, fetch)
        return fetch

    def wait_fetch_complete(self, fetch_request: Any, timeout: float = -1) -> list[Any]:
        """Raises the transfer's error, which names the source, and TimeoutError after `timeout`."""
        fetch: Fetch = fetch_request
        try:
            if fetch.transfer is not None:
                fetch.transfer.wait(None if timeout < 0 else timeout)
        except TransportError as error:
            raise _named(error, fetch) from None
        for target, source in fetch.landed:
            self._copy(target, source)
        fetch.landed.clear()
        return list(fetch.tensors)

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        for fetch in list(self._flying.values()):
            if fetch.obj_id == obj_id and fetch.transfer is not None:
                fetch.transfer.cancel()

    def _reads(
        self, here: Engine, meta: Metadata, targets: list[Any] | None, fetch: Fetch
    ) -> Iterable[Read]:
        """What is to be read beside the block; the fetch gets the tensors that it is read into."""
        for i, place in enumerate(meta.places):
            if isinstance(place, int) and not targets:
                continue
            target = targets[i] if targets else None
            if isinstance(place, int):
                assert meta.block is not None
                assert target is not None
                yield Read(meta.block.bytes(place, place + target.nbytes), target)
            elif target is not None and place.contiguous:
                yield Read(place, target)
            else:
                shape, dtype = meta.tensor_meta[i]
                made = self._like(here, place, shape, dtype, meta.tensor_device)
                if target is None:
                    target = made
                else:  # not element by element into another order
                    fetch.landed.append((target, made))
                yield Read(place, made)
            fetch.tensors[i] = target

    def _cut_all(self, block: Any, meta: Metadata, fetch: Fetch) -> None:
        cut = self._cutter(block)
        for i, (place, (shape, dtype)) in enumerate(zip(meta.places, meta.tensor_meta)):
            if isinstance(place, int):
                fetch.tensors[i] = cut(place, shape, dtype)

    # ------------------------------------------------------------------------------ of each kind
    def _plain(self, tensor: Any) -> Any:
        """The same elements, as they lie in memory."""
        return tensor

    def _device(self, tensors: list[Any]) -> str:
        return "cpu"

    def _block(self, here: Engine, size: int) -> Any:
        """So many bytes, which peers on this host can map."""
        raise NotImplementedError

    def _cutter(self, block: Any) -> Cutter:
        """What makes tensors of parts of the block."""
        raise NotImplementedError

    def _copy(self, target: Any, source: Any) -> None:
        raise NotImplementedError

    def _like(self, here: Engine, place: RemoteRegion, shape: Any, dtype: Any, device: Any) -> Any:
        """Memory for what is read; as dense as the source is, in the same order."""
        dense = not place.contiguous and _is_dense(place)
        strides = place.strides[: len(shape)] if dense else None  # plain bytes have one more
        return self._cutter(self._block(here, place.nbytes))(0, shape, dtype, strides)


class TensorTransport(_Transport):
    """ "TRANSPORT": of torch tensors."""

    backend = "TRANSPORT"

    def __init__(self) -> None:
        super().__init__()
        import torch

        self._torch: Any = torch

    def _plain(self, tensor: Any) -> Any:
        if tensor.is_conj() or tensor.is_neg():
            return tensor.detach().resolve_conj().resolve_neg()
        return tensor

    def _device(self, tensors: list[Any]) -> str:
        kinds = {tensor.device.type for tensor in tensors}
        if len(kinds) > 1:
            raise InvalidUse(f"the tensors of one object are on one kind of device, not on {kinds}")
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            self._torch.cuda.current_stream(device).synchronize()  # what makes them has ended
        return str(kinds.pop())

    def _block(self, here: Engine, size: int) -> Any:
        return here.empty(size, self._torch.uint8, access="read")

    def _cutter(self, block: Any) -> Cutter:
        typed: dict[Any, Any] = {}

        def cut(start: int, shape: Any, dtype: Any, strides: Any = None) -> Any:
            if dtype not in typed:
                typed[dtype] = block.view(dtype)
            size = dtype.itemsize
            if strides is not None:
                steps = [step // size for step in strides]
                return typed[dtype].as_strided(shape, steps, start // size)
            return typed[dtype].narrow(0, start // size, shape.numel()).view(shape)

        return cut

    def _copy(self, target: Any, source: Any) -> None:
        target.detach().copy_(source.detach())

    def _like(self, here: Engine, place: RemoteRegion, shape: Any, dtype: Any, device: Any) -> Any:
        if device == "cpu":
            return super()._like(here, place, shape, dtype, device)
        return self._torch.empty(shape, dtype=dtype, device=device)


class ArrayTransport(_Transport):
    """ "TRANSPORT_NUMPY": of numpy arrays."""

    backend = "TRANSPORT_NUMPY"

    def _block(self, here: Engine, size: int) -> Any:
        return here.empty(size, "uint8", access="read")

    def _cutter(self, block: Any) -> Cutter:
        def cut(start: int, shape: Any, dtype: Any, strides: Any = None) -> Any:
            return np.ndarray(shape, dtype, block, start, strides)

        return cut

    def _copy(self, target: Any, source: Any) -> None:
        target[...] = source


def _named(error: TransportError, fetch: Fetch) -> TransportError:
    """The error, which now says whose memory it was about: a peer that is gone told no name."""
    words = f"{error} (Ray object {fetch.obj_id}, made by {fetch.source})"
    error.args = (*error.args[:-1], words)
    if isinstance(error, PeerError):
        error.peer = fetch.source
    return error


def _is_copied(found: View) -> bool:
    """Whether a tensor is cheaper to copy than to describe, or too finely strided to read."""
    if found.nbytes <= SMALL:
        return True
    if found.contiguous or _is_dense(found):
        return False
    run = found.itemsize
    for size, step in zip(reversed(found.shape), reversed(found.strides)):
        if step != run:
            break
        run *= size
    return run < _SHORT


def _is_dense(what: View | RemoteRegion) -> bool:
    """Whether its elements fill their memory, in whatever order of its dimensions."""
    expected = what.itemsize
    for step, size in sorted(zip(what.strides, what.shape)):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True


def _starts(views: list[View], small: list[bool]) -> tuple[list[int | None], int]:
    """Where in the block each tensor begins that is copied into it, and the block's size."""
    starts: list[int | None] = []
    end = 0
    for found, copied in zip(views, small):
        starts.append(end if copied else None)
        if copied:
            end += -(-max(found.nbytes, 1) // _ALIGN) * _ALIGN
    return starts, end
