"""Every kind of collective as a rank carries it out, and what a plain computation makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from transport.collectives.call import Call, Kind
from transport.collectives.reduction import Premultiplied, Reduction

if TYPE_CHECKING:
    from nccl_ranks import Rank

    from transport.collectives.reduction import Reduce

LONG = 30.0


class Case(NamedTuple):
    """One call, of tensors of about `count` elements."""

    kind: Kind
    dtype: str = "float32"
    reduction: Reduce = Reduction.SUM
    root: int = 0
    count: int = 1000
    layout: str = "whole"  # parts one behind another; "apart": each on its own; "uneven" sizes
    in_place: bool = False


def inputs(case: Case, rank: int, ranks: int) -> list[Any]:
    """What a rank puts in, as CPU tensors; small whole numbers, which no dtype rounds."""
    import torch

    random = torch.Generator().manual_seed(rank * 7919 + len(case.dtype))
    many = case.kind in (Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.SCATTER)
    high = 2 if case.dtype == "bool" else 4
    sizes = [_size(case, rank, part, ranks) for part in range(ranks if many else 1)]
    made = [torch.randint(high // 3, high, (size,), generator=random) for size in sizes]
    return [each.to(torch.float64).to(getattr(torch, case.dtype)) for each in made]


def _size(case: Case, rank: int, part: int, ranks: int) -> int:
    if case.layout != "uneven":
        return case.count
    if case.kind is Kind.ALL_TO_ALL:
        return case.count + 8 * ((rank + 2 * part) % ranks)
    if case.kind in (Kind.REDUCE_SCATTER, Kind.SCATTER):
        return case.count + 8 * part
    return case.count + 8 * rank  # gather, all_gather


def expected(case: Case, rank: int, ranks: int) -> list[Any]:
    """What a rank has to get."""
    own = [inputs(case, each, ranks) for each in range(ranks)]
    kind, root = case.kind, case.root
    if kind is Kind.ALL_REDUCE or (kind is Kind.REDUCE and rank == root):
        return [_reduced([each[0] for each in own], case)]
    if kind is Kind.REDUCE_SCATTER:
        return [_reduced([each[rank] for each in own], case)]
    if kind is Kind.BROADCAST:
        return [own[root][0]]
    if kind is Kind.ALL_GATHER or (kind is Kind.GATHER and rank == root):
        return [each[0] for each in own]
    if kind is Kind.SCATTER:
        return [own[root][rank]]
    if kind is Kind.ALL_TO_ALL:
        return [each[rank] for each in own]
    return []


def _reduced(parts: list[Any], case: Case) -> Any:
    import torch

    dtype, reduction = parts[0].dtype, case.reduction
    wide = torch.complex128 if dtype.is_complex else torch.float64
    stack = torch.stack([part.to(wide) for part in parts])
    if isinstance(reduction, Premultiplied):
        scaled = torch.stack([(row * reduction.factor).to(dtype).to(wide) for row in stack])
        return scaled.sum(0).to(dtype)
    if case.dtype == "bool":
        truths = stack.bool()
        anyone = reduction in (Reduction.SUM, Reduction.MAXIMUM)
        return truths.any(0) if anyone else truths.all(0)
    ways = {
        Reduction.SUM: lambda: stack.sum(0),
        Reduction.PRODUCT: lambda: stack.prod(0),
        Reduction.MINIMUM: lambda: stack.amin(0),
        Reduction.MAXIMUM: lambda: stack.amax(0),
        Reduction.AVERAGE: lambda: stack.sum(0) / len(parts),
    }
    found = ways[reduction]()
    return (found if dtype.is_floating_point or dtype.is_complex else found.trunc()).to(dtype)


# ------------------------------------------------------------------------------------- on the GPU
def place(own: Rank, parts: list[Any], apart: bool) -> list[Any]:
    """Tensors on the double's GPU with those values, one behind another or not."""
    gap = 64 if apart else 0
    sizes = [part.nbytes for part in parts]
    base = own.gpu.alloc(max(sum(sizes) + gap * len(parts), 1))
    made, at = [], base
    for part, nbytes in zip(parts, sizes):
        made.append(own.gpu.tensor(at, tuple(part.shape), _name(part)))
        if nbytes:
            own.gpu.put(at, _raw(part))
        at += nbytes + gap
    return made


def _name(part: Any) -> str:
    return str(part.dtype).removeprefix("torch.")


def _raw(part: Any) -> bytes:
    import torch

    return bytes(part.contiguous().view(torch.uint8).numpy().tobytes())


def call_of(own: Rank, case: Case, rank: int, ranks: int) -> tuple[Call, list[Any]]:
    """The call, and what its targets have to hold."""
    import torch

    kind, apart = case.kind, case.layout != "whole"
    if kind is Kind.BARRIER:
        return Call(kind), []
    wanted = expected(case, rank, ranks)
    holds = kind not in (Kind.BROADCAST, Kind.SCATTER) or rank == case.root
    source = place(own, inputs(case, rank, ranks), apart) if holds else []
    target = place(own, [torch.zeros_like(part) for part in wanted], apart)
    if case.in_place and wanted and kind in (Kind.ALL_REDUCE, Kind.REDUCE):
        target = source
    if case.in_place and kind is Kind.REDUCE_SCATTER:
        target = [source[rank]]
    if case.in_place and kind is Kind.ALL_GATHER:
        own.gpu.put(target[rank].data_ptr(), _raw(wanted[rank]))
        source = [target[rank]]
    if case.in_place and kind is Kind.BROADCAST and rank == case.root:
        target = source
    made = Call(kind, tuple(source), tuple(target), case.reduction, case.root)
    return made, wanted


def differences(own: Rank, call: Call, wanted: list[Any]) -> list[str]:
    found = []
    for index, (part, want) in enumerate(zip(call.target, wanted, strict=True)):
        raw = own.gpu.bytes_at(part.data_ptr(), part.nbytes) if part.nbytes else b""
        if raw != _raw(want):
            found.append(f"target {index}: {raw[:16].hex()} and not {_raw(want)[:16].hex()}")
    return found


def check(own: Rank, cases: list[Case], coalesced: bool = False) -> list[str]:
    """Carries them out, one by one or as one group; what came out wrong."""
    carrier, wrong = own.carrier, []
    made = [call_of(own, case, carrier.rank, carrier.ranks) for case in cases]
    refused = [why for call, _ in made if (why := carrier.refusal(call))]
    if refused:
        return refused
    groups = [made] if coalesced else [[each] for each in made]
    for group in groups:
        stream = own.gpu.stream()
        work = carrier.begin([call for call, _ in group], stream, LONG)
        assert work.wait(LONG), "it does not end"
        for call, wanted in group:
            wrong += [f"{call.kind.value}: {text}" for text in differences(own, call, wanted)]
        own.gpu.close_stream(stream)
    return wrong


def refusals(own: Rank, cases: list[Case]) -> list[str]:
    """Why calls of that kind, dtype and reduction are refused; "" where they are not."""
    found = []
    for case in cases:
        parts = tuple(place(own, inputs(case, own.carrier.rank, own.carrier.ranks), apart=False))
        found.append(own.carrier.refusal(Call(case.kind, parts, parts[:1], case.reduction)))
    return found
