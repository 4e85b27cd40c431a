"""One rank of `transport bench collectives`: what it is asked to measure, and what it finds.

Imports torch. Every way does the same calls in the same processes, in turn; values are small whole
numbers, so that whatever order a sum is made in gives the same bits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.cli.child import serve
from transport.collectives.call import Call, Kind
from transport.collectives.reduction import Reduction
from transport.errors import InvalidUse

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

TORCH = "torch gloo"
WARM_UP = 2
_DEADLINE = 120.0
_JOINING = 60.0


@dataclass(frozen=True, slots=True)
class Measure:
    """One row: which kind, of how many bytes, of what."""

    kind: str
    nbytes: int
    dtype: str
    op: str
    in_place: bool
    rounds: int
    calls: int
    """Timed together, one after the other: where all begin is no part of it."""


@dataclass(frozen=True, slots=True)
class Found:
    """Of one rank and way: seconds of each round, and the elements that were wrong afterwards.
    `refusal` says why there are none."""

    seconds: tuple[float, ...] = ()
    wrong: int = 0
    refusal: str = ""


def rank_child(pipe: Connection, rank: int, ranks: int, device: str) -> None:
    """The process of one rank."""
    side = Side(rank, ranks, device)
    serve(pipe, {"join": side.join, "measure": side.measure, "leave": side.leave})


class Side:
    """What it holds between two questions."""

    def __init__(self, rank: int, ranks: int, device: str) -> None:
        self.rank, self.ranks = rank, ranks
        self.device = f"cuda:{rank}" if device == "cuda" else device
        self.carriers: dict[str, Any] = {}
        self._groups: list[Any] = []
        self._torch = False

    def join(self, at: str, names: list[str], store: str | None) -> None:
        """Makes a group for each carrier; `store` is a file for torch.distributed."""
        import torch
        import torch.distributed as distributed

        from transport.collectives import bootstrap
        from transport.collectives.carriers import maker

        torch.set_num_threads(1)
        for name in names:
            group, _ = bootstrap.join(
                name, self.rank, self.ranks, at, engine=None, deadline=_JOINING
            )
            self._groups.append(group)
            gpu = None if self.device == "cpu" else self.rank
            self.carriers[name] = maker(name)(group, _JOINING, gpu)
        if store is not None:
            distributed.init_process_group(
                "gloo", init_method=f"file://{store}", rank=self.rank, world_size=self.ranks
            )
            self._torch = True

    def measure(self, asked: Measure) -> dict[str, Found]:
        """By way; the ways take turns."""
        runs = {name: self._by_carrier(name, asked) for name in self.carriers}
        if self._torch:
            runs[TORCH] = self._by_torch(asked)
        refused = {name: run for name, run in runs.items() if isinstance(run, str)}
        usable = {name: run for name, run in runs.items() if not isinstance(run, str)}
        seconds: dict[str, list[float]] = {name: [] for name in usable}
        wrong: dict[str, int] = dict.fromkeys(usable, 0)
        for turn in range(asked.rounds + WARM_UP):
            for name, case in usable.items():
                took, bad = self._turn(case, asked)
                wrong[name] += bad
                if turn >= WARM_UP:
                    seconds[name].append(took)
        found = {name: Found(tuple(seconds[name]), wrong[name]) for name in usable}
        return {**found, **{name: Found(refusal=why) for name, why in refused.items()}}

    def _turn(self, case: Case, asked: Measure) -> tuple[float, int]:
        """Seconds of a call, of several in a row, and the wrong elements."""
        case.reset()
        case.run()
        wrong = case.wrong()
        self._meet()
        start = time.perf_counter()
        for _ in range(asked.calls):
            case.run()
        took = (time.perf_counter() - start) / asked.calls
        # In place each call reduces what the one before has made: nothing to compare with.
        return took, wrong or (0 if asked.in_place else case.wrong())

    def leave(self) -> None:
        import torch.distributed as distributed

        from transport.collectives import bootstrap

        self._meet()
        for carrier in self.carriers.values():
            carrier.close()
        for group in self._groups:
            group.mailbox.close()
            if self.rank == 0:
                bootstrap.leave(group)
        if self._torch:
            distributed.destroy_process_group()

    def _meet(self) -> None:
        """So that all begin at about the same time."""
        carrier = next(iter(self.carriers.values()))
        carrier.begin([Call(Kind.BARRIER)], None, _DEADLINE).wait(_DEADLINE)

    def _by_carrier(self, name: str, asked: Measure) -> Case | str:
        carrier, case = self.carriers[name], Case(self, asked)
        refusal: str = carrier.refusal(case.call)
        if refusal:
            return refusal

        def run() -> None:
            carrier.begin([case.call], None, _DEADLINE).wait(_DEADLINE)
            case.settle()

        case.run = run
        return case

    def _by_torch(self, asked: Measure) -> Case | str:
        case = Case(self, asked)
        run = torch_way(case)
        if run is None:
            return "torch.distributed has it not on gloo"
        case.run = run
        return case


class Case:
    """The tensors of one row at one rank. `call` has them; `run` is given by the way."""

    run: Callable[[], object]

    def __init__(self, side: Side, asked: Measure) -> None:
        import torch

        self.kind, self.rank, self.ranks = Kind(asked.kind), side.rank, side.ranks
        self.reduction = Reduction.parse(asked.op)
        self._device = side.device
        self._dtype = getattr(torch, asked.dtype)
        whole = max(asked.nbytes // self._dtype.itemsize, 1)
        shared = self.kind in _SHARED
        self.count = max(whole // self.ranks, 1) if shared else whole
        self._given = [self._values(rank) for rank in range(self.ranks)]
        self._in_place = asked.in_place
        self.call = self._call()

    def reset(self) -> None:
        """What a call may have overwritten; results are made wrong."""
        for part in self.call.target:
            part.zero_()
        for part, (rank, _) in zip(self.call.source, self._sources()):
            part.copy_(self._given[rank])
        self.settle()

    def settle(self) -> None:
        """Waits for the device."""
        if self._device != "cpu":
            import torch

            torch.cuda.synchronize()

    def wrong(self) -> int:
        """Elements of the results that are not what they should be."""
        wanted = self._wanted()
        return sum(
            int((part != right).sum()) for part, right in zip(self.call.target, wanted)
        ) or self._wrong_bytes(wanted)

    def _wrong_bytes(self, wanted: list[Any]) -> int:
        import torch

        parts = zip(self.call.target, wanted)
        return sum(
            int((part.view(torch.uint8) != right.view(torch.uint8)).sum()) for part, right in parts
        )

    def _values(self, rank: int) -> Any:
        import torch

        made = (torch.arange(self.count, dtype=torch.int32) * 7 + rank * 3) % 5
        return made.to(self._dtype).to(self._device)

    def _call(self) -> Call:
        source = [self._given[rank].clone() for rank, _ in self._sources()]
        fresh = [self._given[0].clone() for _ in range(self._targets())]
        if self._in_place and self.kind in (Kind.ALL_REDUCE, Kind.REDUCE) and fresh:
            fresh = source
        elif self._in_place and self.kind is Kind.ALL_GATHER:
            fresh[self.rank] = source[0]
        elif self._in_place and self.kind is Kind.REDUCE_SCATTER:
            fresh[0] = source[self.rank]
        return Call(self.kind, tuple(source), tuple(fresh), self.reduction, root=0)

    def _sources(self) -> list[tuple[int, int]]:
        """Whose values this rank puts in, and for whom."""
        if self.kind is Kind.BROADCAST and self.rank:
            return []
        if self.kind is Kind.SCATTER:
            return [(rank, rank) for rank in range(self.ranks)] if self.rank == 0 else []
        if self.kind in (Kind.ALL_TO_ALL, Kind.REDUCE_SCATTER):
            return [((self.rank + rank) % self.ranks, rank) for rank in range(self.ranks)]
        return [(self.rank, self.rank)]

    def _targets(self) -> int:
        root = self.rank == 0
        if self.kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL) or (self.kind is Kind.GATHER and root):
            return self.ranks
        absent = not root if self.kind in (Kind.REDUCE, Kind.GATHER) else False
        return 0 if absent or (self.kind is Kind.BROADCAST and root) else 1

    def _wanted(self) -> list[Any]:
        if self.kind in (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER):
            return [reduced(self.reduction, self._given)]
        if self.kind is Kind.BROADCAST:
            return [self._given[0]]
        if self.kind is Kind.SCATTER:
            return [self._given[self.rank]]
        if self.kind is Kind.ALL_TO_ALL:
            return [self._given[(self.rank + rank) % self.ranks] for rank in range(self.ranks)]
        return self._given


_SHARED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.GATHER, Kind.SCATTER)


def reduced(reduction: Any, given: list[Any]) -> Any:
    """By torch alone."""
    import torch

    steps = {
        Reduction.PRODUCT: torch.mul,
        Reduction.MINIMUM: torch.minimum,
        Reduction.MAXIMUM: torch.maximum,
    }
    total = given[0]
    for each in given[1:]:
        total = steps.get(reduction, torch.add)(total, each)
    return total / len(given) if reduction is Reduction.AVERAGE else total


def torch_way(case: Case) -> Callable[[], object] | None:
    """The same by torch.distributed on gloo; None where it has none."""
    import torch.distributed as distributed

    ops: Any = distributed.ReduceOp
    names = {"sum": ops.SUM, "prod": ops.PRODUCT, "min": ops.MIN, "max": ops.MAX}
    op = names.get(getattr(case.reduction, "value", ""))
    source, target = case.call.source, case.call.target
    if case.kind is Kind.BROADCAST:
        return lambda: distributed.broadcast((*source, *target)[0], 0)
    if case.kind is Kind.ALL_GATHER:
        return lambda: distributed.all_gather(list(target), source[0])
    if case.kind is Kind.GATHER:
        return lambda: distributed.gather(source[0], list(target) or None, 0)
    if case.kind is Kind.SCATTER:
        return lambda: distributed.scatter(target[0], list(source) or None, 0)
    if case.kind in (Kind.ALL_REDUCE, Kind.REDUCE) and op is not None:

        def run() -> None:
            into = target[0] if target else source[0].clone()
            if into is not source[0] and target:
                into.copy_(source[0])
            if case.kind is Kind.ALL_REDUCE:
                distributed.all_reduce(into, op)
            else:
                distributed.reduce(into, 0, op)

        return run
    return None


def check_dtype(name: str) -> int:
    """Bytes of one element. Raises InvalidUse."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidUse(f"torch has no dtype {name!r}")
    size: int = dtype.itemsize
    return size
