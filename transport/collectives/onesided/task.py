"""One call under way at one rank: what it has offered, what peers have offered to it.

May import message, arena, stretch, call, engine and errors. What the call does is a generator
(`moves`, `reduces`), which yields the transfer that it waits for, or None for what peers say.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from transport.collectives.call import gpu_of
from transport.collectives.onesided.message import Lane, Message, What
from transport.collectives.onesided.stretch import Stretch
from transport.engine.batch import Read
from transport.engine.order import AFTER_NOTHING
from transport.errors import InvalidUse, PeerError, PeerLost, StaleRegion, TransportError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from transport.collectives.call import Call
    from transport.collectives.onesided.arena import Window
    from transport.engine.engine import Engine
    from transport.engine.grant import Grant
    from transport.engine.transfer import Transfer

    Steps = Generator[Transfer | None, None, None]

_SPARE = 4096  # offers that one call may hold, beyond a few for each rank
_EXPLANATION = 1.0  # seconds that a peer which took its memory back has to say why
_LETTING_GO = 1.0  # seconds for peers to stop reading what a call that failed has offered


class Key(NamedTuple):
    """What tells calls apart: `peer` and `tag` are those of SEND and RECV."""

    lane: Lane
    number: int
    peer: int = -1
    tag: int = 0


class Port(Protocol):
    """What a task needs of its carrier."""

    rank: int
    size: int
    engine: Engine
    hosts: list[str]

    def say(self, rank: int, message: Message) -> None: ...
    def offer(self, task: Task, phase: int, memory: Any, ranks: Sequence[int]) -> int: ...
    def region(self, rank: int, message: Message) -> Any: ...
    def window(self, rank: int) -> Window: ...
    def borrow(self, nbytes: int) -> Any: ...
    def give_back(self, scratch: Any) -> None: ...
    @property
    def done(self) -> int: ...


class Wanted(NamedTuple):
    """What is to come from a rank, and the bytes that it goes to."""

    rank: int
    into: Any


class Task:
    """`error` says how it ended; it has ended once it is `quiet`, too: no byte moves any more.

    `ready` are transfers that end when GPUs' streams are as far as the call needs them.
    """

    def __init__(
        self,
        port: Port,
        key: Key,
        call: Call,
        sign: str,
        deadline: float,
        ready: Iterable[Transfer] = (),
    ) -> None:
        self.port = port
        self.key = key
        self.call = call
        self.on_gpu = gpu_of(call) is not None
        self.sign = sign
        self.end = time.monotonic() + deadline
        self.steps: Steps | None = None
        self.error: TransportError | None = None
        self.ended = False
        self.over = False  # nothing begins any more
        self.begun = 0.0
        self._offers: dict[tuple[int, int], Message] = {}
        self._unheard = 0  # peers that have not said yet that they have what was offered
        self._ready = tuple(ready)
        self._transfers: list[Transfer] = list(self._ready)
        self._placing: list[Transfer] = []
        self._grants: list[Grant] = []
        self._ending: threading.Thread | None = None
        self._scratch: list[Any] = []

    # -------------------------------------------------------------------------------- what is said
    def hear(self, rank: int, message: Message) -> None:
        """An offer, or that a peer has what was offered. Raises InvalidUse for another call's."""
        if message.what is What.TAKEN:
            if self.key.lane is Lane.ORDERED or self._unheard:  # a small SEND ends before
                self._unheard -= 1
            if self._unheard < 0:
                raise PeerError(f"rank {rank} has taken what nobody offered to it")
            return
        if message.text != self.sign:
            raise InvalidUse(
                f"ranks ask for different collectives: rank {rank} for {message.text}, rank"
                f" {self.port.rank} for {self.sign}"
            )
        if len(self._offers) > _SPARE + 4 * self.port.size:
            raise PeerError(f"rank {rank} offers too much")
        self._offers[rank, message.phase] = message

    def heard(self, rank: int, phase: int) -> Message | None:
        return self._offers.get((rank, phase))

    # ------------------------------------------------------------------------------------- offering
    def give(
        self, memory: Any, ranks: Iterable[int], phase: int = 0, *, silent: bool = False
    ) -> None:
        """Offers bytes to ranks. They must stay as they are until `settle` is over; with `silent`
        until something else tells that all have them."""
        direct = self.port.offer(self, phase, memory, tuple(ranks))
        if not silent:
            self._unheard += direct

    def grant(self, memory: Any) -> Any:
        """The right to read the memory, until this task has ended."""
        whole = memory.tensor if isinstance(memory, Stretch) else memory
        made = self.port.engine.grant([whole], access="read")
        self._grants.append(made)
        handle = made.handles[0]
        return memory.of(handle) if isinstance(memory, Stretch) else handle.bytes()

    def get_ready(self) -> Steps:
        """Until memory on GPUs may be read and written. Nothing else of the call comes before."""
        for each in self._ready:
            yield from self.finish(each)

    def settle(self) -> Steps:
        """Until all have what was offered to them, and what was placed is there."""
        for each in self._placing:
            yield from self.finish(each)
        while self._unheard:
            yield None

    # --------------------------------------------------------------------------------------- taking
    def offered(self, rank: int, phase: int, size: int) -> Message | None:
        """None while there is no offer. Raises InvalidUse for one of another size."""
        message = self._offers.get((rank, phase))
        if message is not None and message.size != size:
            raise InvalidUse(
                f"rank {rank} gives {message.size} bytes where rank {self.port.rank} takes"
                f" {size} ({self.sign})"
            )
        return message

    def await_all(self, ranks: Iterable[int], phase: int, size: int) -> Generator[None, None, None]:
        for rank in ranks:
            while self.offered(rank, phase, size) is None:
                yield None

    def look(self, rank: int, message: Message) -> Any:
        """The bytes of an offer where they are; None where they must be read. Raises PeerError."""
        if self.on_gpu:  # which no CPU may write to
            if not message.direct:
                raise PeerError(f"rank {rank} offers host memory where a GPU's was to be")
            return None
        if message.inline is not None:
            import torch

            return torch.frombuffer(bytearray(message.inline), dtype=torch.uint8)
        if message.at is not None:
            return self.port.window(rank).bytes(message.at, message.size)
        return None

    def take(self, wanted: Iterable[Wanted], phase: int = 0) -> Steps:
        """Brings what is offered to where it goes, in the order in which it is there."""
        left, flying = list(wanted), list[tuple["Transfer", list[Wanted]]]()
        while left or flying:
            self._take_offered(left, flying, phase)
            for flight in [flight for flight in flying if flight[0].done]:
                flying.remove(flight)
                yield from self.finish(flight[0])
                for each in flight[1]:
                    self.taken(each.rank, phase)
            if left or flying:
                yield flying[0][0] if flying else None

    def _take_offered(
        self, left: list[Wanted], flying: list[tuple[Transfer, list[Wanted]]], phase: int
    ) -> None:
        reads: list[Read] = []
        reading: list[Wanted] = []
        for each in left.copy():
            message = self.offered(each.rank, phase, each.into.numel())
            if message is None:
                continue
            left.remove(each)
            here = self.look(each.rank, message) if message.size else each.into
            if here is None:
                reads.append(Read(self.port.region(each.rank, message), each.into))
                reading.append(each)
            else:
                copy(each.into, here)
                self.taken(each.rank, phase)
        if reads:
            flying.append((self.read(reads), reading))

    def place(self, into: Any, source: Any) -> None:
        """Begins to bring memory of this rank to another of its own; `settle` waits for it."""
        if not self.on_gpu:
            copy(into, source)
        elif into.numel() and into.address != source.address:
            self._placing.append(self.read([Read(self.grant(source), into)]))

    def taken(self, rank: int, phase: int) -> None:
        """Tells a peer that it may change its memory, where it must know."""
        message = self._offers.get((rank, phase))
        if message is not None and (message.direct or self.key.lane is Lane.RECV):
            lane = Lane.SEND if self.key.lane is Lane.RECV else self.key.lane
            told = Message(What.TAKEN, self.port.done, lane, self.key.number, self.key.tag, phase)
            with contextlib.suppress(PeerLost):  # the bytes are here; the hub tells of the loss
                self.port.say(rank, told)

    def all_taken(self, ranks: Iterable[int], phase: int = 0) -> None:
        for rank in ranks:
            self.taken(rank, phase)

    def read(self, reads: list[Read]) -> Transfer:
        """Begins at once, whatever streams do meanwhile: see `get_ready`."""
        if self.on_gpu:
            reads = [Read(each.remote, each.into.local) for each in reads]
        left = max(self.end - time.monotonic(), 0.0)
        begun = self.port.engine.submit(reads, deadline=left, stream=AFTER_NOTHING)
        self._transfers.append(begun)
        return begun

    def finish(self, transfer: Transfer) -> Steps:
        """Until it has ended. Raises what went wrong."""
        while not transfer.done:
            yield transfer
        try:
            transfer.wait()
        except StaleRegion:  # the peer's call failed: it is about to say why
            until = time.monotonic() + _EXPLANATION
            while time.monotonic() < until:
                yield None
            raise

    # -------------------------------------------------------------------------------------- memory
    def borrow(self, nbytes: int) -> Any:
        """Bytes for the time of this task."""
        scratch = self.port.borrow(nbytes)
        self._scratch.append(scratch)
        return scratch[:nbytes]

    # -------------------------------------------------------------------------------------- the end
    def stop(self, error: TransportError | None) -> None:
        """Nothing begins any more, and nobody may read from here any more. Does not wait for peers
        where it failed: see `quiet`."""
        if self.over:
            return
        self.over = True
        self.error = error
        if self.steps is not None:
            self.steps.close()
        for transfer in self._transfers:
            transfer.cancel()
        if error is None:
            self._take_back(None)
        elif self._grants:
            name, within = "transport-onesided-end", (_LETTING_GO,)
            self._ending = threading.Thread(
                target=self._take_back, args=within, name=name, daemon=True
            )
            self._ending.start()

    def _take_back(self, timeout: float | None) -> None:
        """Of peers that still read, who does not let go within that time is cut off: none that is
        well, for it may be needed by those who are left."""
        for grant in self._grants:
            with contextlib.suppress(TransportError):  # the engine is being closed
                grant.close(timeout)

    @property
    def moving(self) -> Transfer | None:
        """What may still move bytes here; None when nothing does."""
        self._transfers = [transfer for transfer in self._transfers if not transfer.quiet]
        return next(iter(self._transfers), None)

    @property
    def quiet(self) -> bool:
        """Whether no byte moves any more, and nobody can read any."""
        ending = self._ending is not None and self._ending.is_alive()
        return self.moving is None and not ending

    def bury(self) -> None:
        """It is quiet: what it held goes back."""
        self.ended = True
        for scratch in self._scratch:
            self.port.give_back(scratch)
        self._scratch.clear()
        self._offers.clear()
        self._grants.clear()
        self._ready = ()
        self._placing.clear()
        self.steps = None


def copy(into: Any, source: Any) -> None:
    """Bytes of one tensor to another; by one thread, without Python's lock."""
    nbytes = into.numel()
    if nbytes and into.data_ptr() != source.data_ptr():
        ctypes.memmove(into.data_ptr(), source.data_ptr(), nbytes)


def flat(tensor: Any) -> Any:
    """The bytes of a contiguous tensor: a tensor of them, or a Stretch of a GPU's."""
    import torch

    if tensor.device.type != "cpu":
        return Stretch(tensor, 0, tensor.nbytes)
    return tensor.detach().reshape(-1).view(torch.uint8)
