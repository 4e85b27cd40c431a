"""The `CheckpointTransport`: what torchft calls.

May import weights and everything below it, and torchft. torchft calls a transport from the thread
of its quorum, and `disallow_checkpoint` from the trainer's; a lock keeps the two apart.

What is published is each tensor's memory as plain bytes, under its number; an outline, which is
small and pickled, tells what they are. It is read only from an engine that has proved who it is.
"""

from __future__ import annotations

import hashlib
import pickle
import secrets
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import numpy as np

from transport.adapters.torchft.state import Outline, flatten, unflatten
from transport.errors import DeadlineExceeded, InvalidUse, Unavailable
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate
from transport.sharding.state import StateLayout
from transport.weights.clock import Clock
from transport.weights.publication import publish
from transport.weights.subscription import Fetched, Subscription

try:
    from torchft.checkpointing.transport import CheckpointTransport
    from torchft.process_group import ProcessGroupWrapper, create_store_client
except ImportError as error:
    raise Unavailable(
        f"torchft cannot be imported: {error}", "pip install 'tensor-transport[torchft]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torchft.process_group import ProcessGroup

    from transport.engine.engine import Engine
    from transport.weights.publication import Publication

__all__ = ["PeerTransport"]

T = TypeVar("T")

_MINUTE = timedelta(seconds=60)  # torchft's own default
_MAX_OUTLINE = 64 << 20  # bytes; more is no outline
_SEATS = 1 << 12  # replicas of one quorum


class _Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """What `metadata()` says, as JSON."""

    id: str
    addresses: list[str]


@dataclass(frozen=True, slots=True)
class _Quorum:
    """Where this replica stands since the process group was last configured."""

    label: str
    rank: int
    size: int
    others: list[str]  # addresses of the engines; filled when the group has met


class PeerTransport(CheckpointTransport[T]):  # type: ignore[misc]
    """A `CheckpointTransport` of torchft over an engine, which the caller opens and closes.

    Nothing is copied at the source: the tensors themselves are read, between `send_checkpoint` and
    `disallow_checkpoint`. With `share`, every healthy replica serves a part of what heals another.
    `timeout` bounds what torchft gives none for; `state_dict` is for a receive in place: tensors at
    the same place in it, of the same shape and dtype, are overwritten, all others are made.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        timeout: timedelta = _MINUTE,
        state_dict: Callable[[], T] | None = None,
    ) -> None:
        self._engine = engine
        self._timeout = timeout.total_seconds()
        self._into = state_dict
        self._id = secrets.token_hex(8)
        self._lock = threading.RLock()
        self._open: list[Publication] = []
        self._kept: list[Any] = []  # the memory of what is published
        self._quorum: _Quorum | None = None
        self._name: str | None = None  # of the state that is published
        self._fetched: Fetched | None = None

    @property
    def fetched(self) -> Fetched | None:
        """What the last `recv_checkpoint` did."""
        return self._fetched

    # -------------------------------------------------------------------------- torchft's interface
    def metadata(self) -> str:
        """Where this replica's engine listens, as JSON."""
        found = _Metadata(self._id, self._addresses())
        return msgspec.json.encode(found).decode()

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: T, timeout: timedelta
    ) -> None:
        """Lets the healing replicas read the state; returns at once. Raises InvalidUse."""
        del dst_ranks, timeout  # whoever is to heal reads when it wants to
        with self._lock:
            outline, tensors = flatten(state_dict)
            outline.state, outline.ranks = self._offer(step, tensors)
            blob = np.frombuffer(pickle.dumps(outline), np.uint8)
            self._publish(f"torchft/{self._id}/{step}", {"outline": blob}, step)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> T:
        """The state of the replica that `metadata` is of, at `step`.

        Raises DeadlineExceeded, which is a TimeoutError, where nobody offers that step in time, and
        else what `Subscription.fetch` raises.
        """
        source = _decoded(metadata)
        clock = Clock(timeout.total_seconds(), self._timeout)
        try:
            return cast("T", self._received(source, step, clock))
        except (Unavailable, DeadlineExceeded) as error:
            raise DeadlineExceeded(
                f"timed out: replica {src_rank} gave no state of step {step} within"
                f" {clock.limit:g} s: {error}"
            ) from error

    def disallow_checkpoint(self) -> None:
        """Waits for readers, and takes the state back: from now on it may change."""
        with self._lock:
            opened, self._open = self._open, []
            self._name = None
            for publication in opened:
                publication.begin(patience=self._timeout)
                publication.close()
            self._kept.clear()

    def shutdown(self, wait: bool = True) -> None:
        """Takes the state back; the engine stays open."""
        del wait
        if not self._engine.closed:
            self.disallow_checkpoint()

    # ------------------------------------------------------------------------------ several sources
    def share(
        self, pg: ProcessGroup, state_dict: Callable[[], object], step: Callable[[], int]
    ) -> ProcessGroup:
        """Makes this replica give a part whenever another heals; returns the group for the Manager.

        `state_dict` is what the Manager has under that name, `step` its `current_step`. Only where
        replicas that are at one step hold the same, bit for bit: data parallelism that reduces all
        gradients, not DiLoCo, whose inner optimizers differ. All replicas call it, or none.
        """
        return _Watched(pg, self, state_dict, step)

    def _configured(self, quorum: _Quorum, state: Callable[[], object], step: int) -> None:
        """Called before the group meets: when it has met, every replica has offered what it has."""
        with self._lock:
            self.disallow_checkpoint()
            self._quorum = quorum
            if step > 0:  # before the first commit replicas may have begun differently
                self._offer(step, flatten(state())[1])

    # -------------------------------------------------------------------------------------- inside
    def _addresses(self) -> list[str]:
        return list(self._engine.addresses)

    def _offer(self, step: int, tensors: Mapping[str, Any]) -> tuple[str, int]:
        """Publishes the state, unless it is so already; its name, and how many may have it."""
        quorum = self._quorum
        sizes = {name: tensor.numel() for name, tensor in tensors.items()}
        rank, count, label = (0, 1, self._id)
        if quorum is not None:
            rank, count, label = quorum.rank, quorum.size, quorum.label
        name = f"torchft/{label}/{step}/{_digest(sizes)}"
        if tensors and name != self._name:
            if self._name is not None:
                self.disallow_checkpoint()
            self._publish(name, tensors, step, _replicated(sizes, count), rank)
            self._name = name
        return name, count

    def _publish(
        self,
        name: str,
        tensors: Mapping[str, Any],
        step: int,
        layout: StateLayout | None = None,
        rank: int = 0,
    ) -> None:
        self._kept.append(tensors)
        made = publish(self._engine, name, tensors, step, layout=layout, rank=rank, mode="live")
        self._open.append(made)

    def _received(self, source: _Metadata, step: int, clock: Clock) -> object:
        outline = self._outline(source, step, clock)
        state, tensors = unflatten(outline, None if self._into is None else self._into())
        if tensors:
            addresses = source.addresses
            if outline.ranks > 1 and self._quorum is not None:
                addresses = [*addresses, *self._quorum.others]
            self._fetched = self._fetch(outline.state, addresses, lambda _: tensors, step, clock)
        return state

    def _outline(self, source: _Metadata, step: int, clock: Clock) -> Outline:
        received: dict[str, Any] = {}

        def into(group: StateLayout) -> Mapping[str, Any]:
            size = int(group["outline"].layout.shape[0])
            if size > _MAX_OUTLINE:
                raise InvalidUse(f"an outline of {size} bytes is longer than {_MAX_OUTLINE}")
            received["outline"] = np.empty(size, np.uint8)
            return received

        name = f"torchft/{source.id}/{step}"
        self._fetch(name, source.addresses, into, step, clock)
        found = pickle.loads(received["outline"])
        if not isinstance(found, Outline):
            raise InvalidUse(f"{name} is a {type(found).__name__}, no outline of a state")
        return found

    def _fetch(
        self,
        name: str,
        addresses: Iterable[str],
        into: Callable[[StateLayout], Mapping[str, Any]],
        step: int,
        clock: Clock,
    ) -> Fetched:
        def receive(group: StateLayout) -> tuple[StateLayout, Mapping[str, Any]]:
            return _whole(group), into(group)

        unique = list(dict.fromkeys(addresses))
        with Subscription(self._engine, name, unique, receive, 0, ahead=False) as subscription:
            return subscription.fetch(step, deadline=clock.left())


class _Watched(ProcessGroupWrapper):  # type: ignore[misc]
    """A process group that tells the transport when it is configured anew."""

    def __init__(
        self,
        pg: ProcessGroup,
        transport: PeerTransport[Any],
        state_dict: Callable[[], object],
        step: Callable[[], int],
    ) -> None:
        super().__init__(pg=pg)
        self._transport = transport
        self._state = state_dict
        self._step = step

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        if world_size > _SEATS:
            raise InvalidUse(f"{world_size} replicas in one quorum; {_SEATS} can share")
        label = hashlib.sha256(store_addr.encode()).hexdigest()[:32]
        quorum = _Quorum(label, rank, world_size, [])
        store = create_store_client(f"{store_addr}/transport", timedelta(seconds=60))
        store.set(str(rank), msgspec.json.encode(self._transport._addresses()).decode())
        self._transport._configured(quorum, self._state, self._step())
        which = (quorum_id, group_rank, group_world_size, global_ranks)
        super().configure(store_addr, replica_id, rank, world_size, *which)
        for data in store.multi_get([str(it) for it in range(world_size) if it != rank]):
            quorum.others.extend(msgspec.json.decode(data, type=list[str]))


def _decoded(metadata: str) -> _Metadata:
    try:
        return msgspec.json.decode(metadata, type=_Metadata)
    except msgspec.DecodeError as error:
        raise InvalidUse(
            f"{metadata!r:.80} is not of a PeerTransport ({error}): all replicas need the same"
            " checkpoint_transport"
        ) from None


def _digest(sizes: Mapping[str, int]) -> str:
    """Of what there is: replicas whose states are different do not serve together."""
    return hashlib.sha256(msgspec.json.encode(sizes)).hexdigest()[:16]


def _replicated(sizes: Mapping[str, int], count: int) -> StateLayout:
    """Every rank has all of it."""
    mesh, made = Mesh((count,)), dict[int, Layout]()
    for size in sizes.values():
        if size not in made:
            made[size] = Layout.placed((size,), "uint8", mesh, [Replicate()])
    return StateLayout({name: made[size] for name, size in sizes.items()})


def _whole(group: StateLayout) -> StateLayout:
    """All of it at one rank."""
    made: dict[int, Layout] = {}
    for entry in group.values():
        size = int(entry.layout.shape[0])
        if size not in made:
            made[size] = Layout.whole((size,), "uint8")
    return StateLayout({name: made[int(it.layout.shape[0])] for name, it in group.items()})
