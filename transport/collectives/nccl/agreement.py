"""Whether a group can have NCCL or RCCL: what each rank says of itself, and what follows from it.

May import library, carrier, meeting, group, memory and errors. All ranks get the same answer, so
that all go on to the same carrier; a library that finds a GPU twice ends some ranks and leaves the
others waiting.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

import msgspec

from transport.collectives.carrier import Absent
from transport.collectives.nccl.library import library
from transport.errors import DeadlineExceeded, PeerError, TransportError, Unavailable
from transport.memory.driver import gpu_device
from transport.types import UNDECODABLE

if TYPE_CHECKING:
    from transport.collectives.group import Group
    from transport.config import Settings

_STANDING, _VERDICT = "nccl/rank/{}", "nccl/verdict"
_SHARES_GPUS = 23003  # NCCL 2.30.3, where NCCL_MULTI_RANK_GPU_ENABLE=1 says so
_ALONE = "give each rank a GPU of its own; collectives that only move bytes go without NCCL"

_Text = Annotated[str, msgspec.Meta(max_length=2048)]


class Standing(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One rank: its library, of which the last part of the version may differ, and its GPU, by uuid
    and PCI address; or why it has none."""

    library: _Text = ""
    gpu: _Text = ""
    address: _Text = ""
    shares: bool = False  # it may share its GPU with another rank
    without: _Text = ""
    remedy: _Text = ""


class Verdict(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """For all ranks; `without` is "" where they can have it."""

    without: _Text = ""
    remedy: _Text = ""


def standing(settings: Settings, gpu: int) -> Standing:
    """Of this process, with that GPU."""
    try:
        found, device = library(settings), gpu_device(gpu)
    except Unavailable as error:
        return Standing(without=error.reason[:1500], remedy=(error.remedy or "")[:500])
    except TransportError as error:
        return Standing(without=str(error)[:1500])
    shares = found.name == "NCCL" and found.version >= _SHARES_GPUS and _may_share()
    name = f"{found.name} {found.version // 10000}.{found.version % 10000 // 100}"
    return Standing(name, device.uuid, device.address, shares)


def _may_share() -> bool:
    """NCCL's own variable."""
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"


def agree(group: Group, mine: Standing, seconds: float) -> None:
    """By all ranks. Raises Absent on all of them where they cannot have it, DeadlineExceeded where
    a rank has not said anything within that time, PeerError."""
    if group.rank == 0:
        told = _judge_all(group, mine, seconds)
        group.meeting.set(_VERDICT, msgspec.msgpack.encode(told), seconds)
    else:
        said = msgspec.msgpack.encode(mine)
        group.meeting.set(_STANDING.format(group.rank), said, seconds)
        told = _read(group.meeting.get(_VERDICT, seconds), Verdict)
    if told.without:
        raise Absent(told.without, told.remedy)


def _judge_all(group: Group, mine: Standing, seconds: float) -> Verdict:
    """As soon as it is clear: where a rank has none those after it are not waited for."""
    ends, bench = time.monotonic() + seconds, Bench()
    told = bench.hear(0, group.cards[0].machine, mine)
    for rank, card in enumerate(group.cards[1:], 1):
        if told.without:
            break
        try:
            said = group.meeting.get(_STANDING.format(rank), max(ends - time.monotonic(), 0.001))
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"rank {rank} has called nothing with tensors of GPUs: all ranks make the first"
                f" such call of a communicator (waited {seconds:.3g} s)"
            ) from None
        told = bench.hear(rank, card.machine, _read(said, Standing))
    return told


class Bench:
    """Hears one rank after the other. Pure."""

    def __init__(self) -> None:
        self._first: Standing | None = None
        self._seen: dict[tuple[str, str], tuple[int, bool]] = {}  # by GPU: whose it is, and shares

    def hear(self, rank: int, machine: str, said: Standing) -> Verdict:
        """What is to be told to all, as far as it is known; `machine` is where the rank is."""
        if said.without:
            return Verdict(f"rank {rank} has none: {said.without}"[:2000], said.remedy)
        first = self._first = self._first or said
        if said.library != first.library:
            text = f"rank {rank} has {said.library}, rank 0 {first.library}"
            return Verdict(text, "all ranks need the same")
        for name in ("", said.gpu), (machine, said.address):
            other, shares = self._seen.setdefault(name, (rank, said.shares))
            if other != rank and not (shares and said.shares):
                text = f"ranks {other} and {rank} share the GPU {said.gpu}"
                return Verdict(f"{text}, which {said.library} refuses", _ALONE)
        return Verdict()


def _read(data: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNDECODABLE as error:
        raise PeerError(f"a rank says something else than whether it has NCCL: {error}") from None


if TYPE_CHECKING:
    from typing import TypeVar

    _Kind = TypeVar("_Kind", Standing, Verdict)
