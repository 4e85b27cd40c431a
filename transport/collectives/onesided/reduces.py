"""Calls that make one value of several ranks'. Their sum is made in the order of ranks, wherever it
is made, so that all ranks get the same bits.

May import task, moves, message, call, reduction and errors. float16 and bfloat16 are summed in
float32 and rounded once. What is small is offered whole to all, who all reduce it; of what is large
each rank reduces one chunk, which the others then take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from transport.collectives.call import Kind
from transport.collectives.onesided.moves import others
from transport.collectives.onesided.task import Wanted, flat
from transport.collectives.reduction import Premultiplied, Reduction
from transport.engine.batch import Read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transport.collectives.onesided.message import Message
    from transport.collectives.onesided.task import Steps, Task
    from transport.collectives.reduction import Reduce

WHOLE = 16 << 10  # bytes, up to which every rank reduces everything
_PIECE = 1 << 20  # bytes of each rank that are read and reduced at a time
_SERIAL = 1 << 15  # elements, up to which torch uses one thread
_ALIGNED = 64  # bytes: chunks of ranks begin at cache lines

_NARROW = frozenset((torch.float16, torch.bfloat16))
_OPERATIONS: dict[Reduction, Callable[..., Any]] = {
    Reduction.SUM: torch.add,
    Reduction.AVERAGE: torch.add,
    Reduction.PRODUCT: torch.mul,
    Reduction.MINIMUM: torch.minimum,
    Reduction.MAXIMUM: torch.maximum,
}
_UNORDERED = frozenset((torch.complex64, torch.complex128))
_ADDED = _UNORDERED | _NARROW | {
    torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
    torch.bool,
}  # fmt: skip


def refusal(dtype: torch.dtype, reduction: Reduce) -> str:
    """Why it cannot be reduced; "" when it can."""
    if dtype not in _ADDED:
        return f"{dtype} cannot be reduced on CPUs"
    if reduction in (Reduction.MINIMUM, Reduction.MAXIMUM) and dtype in _UNORDERED:
        return f"{dtype} has no order"
    fraction = isinstance(reduction, Premultiplied) or reduction is Reduction.AVERAGE
    if fraction and not (dtype.is_floating_point or dtype.is_complex):
        return f"{dtype} has no fractions for an average or a factor"
    return ""


# ------------------------------------------------------------------------------------ arithmetic
def combine(reduction: Reduce, parts: Sequence[Any], out: Any) -> None:
    """Reduces the parts, by rank, into `out`, which may be one of them. All are flat."""
    step = out.numel() if torch.get_num_threads() == 1 else _SERIAL
    step = max(min(step, _PIECE // out.itemsize), 1)
    for start in range(0, out.numel(), step):
        _combine(
            reduction, [part[start : start + step] for part in parts], out[start : start + step]
        )


def _combine(reduction: Reduce, parts: Sequence[Any], out: Any) -> None:
    kind = Reduction.SUM if isinstance(reduction, Premultiplied) else reduction
    operation, narrow = _OPERATIONS[kind], out.dtype in _NARROW
    total, own = (parts[0].float(), True) if narrow else (parts[0], False)
    for part in parts[1:]:
        if part is parts[-1] and not narrow:
            into = out
        else:  # `out` may be a part that is still to come
            into = total if own else torch.empty_like(total)
        total, own = operation(total, part, out=into), True
    if kind is Reduction.AVERAGE:
        total = torch.div(total, len(parts), out=None if narrow else out)
    if total is not out:
        out.copy_(total)


def chunks(nbytes: int, count: int) -> list[tuple[int, int]]:
    """The part of each rank, as its first byte and that after its last; some may be empty."""
    step = -(-nbytes // (count * _ALIGNED)) * _ALIGNED
    return [(min(rank * step, nbytes), min((rank + 1) * step, nbytes)) for rank in range(count)]


# ----------------------------------------------------------------------------------------- calls
def all_reduce(task: Task) -> Steps:
    port, call = task.port, task.call
    source, target = _scaled(call.source[0], call.reduction), flat(call.target[0])
    peers = list(others(port.rank, port.size))
    if source.numel() <= WHOLE:
        task.give(source, peers)
        yield from _reduce_whole(task, source, target)
        return
    parts = chunks(source.numel(), port.size)
    task.give(source, peers, silent=True)  # whoever offers his chunk has what he needs
    low, high = parts[port.rank]
    yield from _reduce(task, low, source, target[low:high])
    task.give(target[low:high], peers, 1)
    yield from task.take([Wanted(rank, target[slice(*parts[rank])]) for rank in peers], 1)
    yield from task.settle()


def reduce(task: Task) -> Steps:
    port, call = task.port, task.call
    source, root = _scaled(call.source[0], call.reduction), port.rank == call.root
    peers = list(others(port.rank, port.size))
    if source.numel() <= WHOLE * port.size:
        if root:
            yield from _reduce(task, 0, source, flat(call.target[0]))
            task.all_taken(peers)
        else:
            task.give(source, [call.root])
        yield from task.settle()
        return
    parts = chunks(source.numel(), port.size)
    low, high = parts[port.rank]
    task.give(source, peers)
    out = flat(call.target[0])[low:high] if root else task.borrow(high - low)
    yield from _reduce(task, low, source, out)
    task.all_taken(peers)
    if root:
        target = flat(call.target[0])
        yield from task.take([Wanted(rank, target[slice(*parts[rank])]) for rank in peers], 1)
    else:
        task.give(out, [call.root], 1)
    yield from task.settle()


def reduce_scatter(task: Task) -> Steps:
    port, call = task.port, task.call
    peers = list(others(port.rank, port.size))
    for rank in peers:
        task.give(_scaled(call.source[rank], call.reduction), [rank])
    own = _scaled(call.source[port.rank], call.reduction)
    yield from _reduce(task, 0, own, flat(call.target[0]))
    task.all_taken(peers)
    yield from task.settle()


ALL: dict[Kind, Callable[[Task], Steps]] = {
    Kind.ALL_REDUCE: all_reduce,
    Kind.REDUCE: reduce,
    Kind.REDUCE_SCATTER: reduce_scatter,
}


# ---------------------------------------------------------------------------------------- inside
def _scaled(tensor: Any, reduction: Reduce) -> Any:
    """The bytes of what this rank puts in."""
    if isinstance(reduction, Premultiplied):
        tensor = tensor.detach() * reduction.factor
    return flat(tensor)


def _reduce_whole(task: Task, source: Any, target: Any) -> Steps:
    """`target` may be what others still read, until all have it."""
    size, peers = source.numel(), list(others(task.port.rank, task.port.size))
    yield from task.await_all(peers, 0, size)
    parts = {task.port.rank: source}
    reads: list[Wanted] = []
    for rank in peers:
        message = task.heard(rank, 0)
        assert message is not None
        here = task.look(rank, message) if size else source
        if here is None:
            here = task.borrow(size)
            reads.append(Wanted(rank, here))
        parts[rank] = here
    yield from task.take(reads)
    yield from task.settle()
    dtype = task.call.source[0].dtype
    ordered = [parts[rank].view(dtype) for rank in range(task.port.size)]
    combine(task.call.reduction, ordered, target.view(dtype))


class _Pieces:
    """What the ranks offer from byte `low` on, piece by piece: seen where it is, or read."""

    def __init__(self, task: Task, low: int, source: Any, size: int) -> None:
        self._task, self._low, self._size = task, low, size
        self._seen: dict[int, Any] = {task.port.rank: source}
        self._messages: dict[int, Message] = {}
        for rank in others(task.port.rank, task.port.size):
            message = task.heard(rank, 0)
            assert message is not None
            here = task.look(rank, message) if message.size else source
            if here is None:
                self._messages[rank] = message
            else:
                self._seen[rank] = here
        piece = min(size, _PIECE)
        self._scratch = [
            {rank: task.borrow(piece) for rank in self._messages}
            for _ in range(2 if size > piece else 1)
        ]
        self.starts = range(0, size, _PIECE)

    def read(self, index: int) -> Any:
        """Begins to; None where there is nothing to read."""
        if not self._messages or index >= len(self.starts):
            return None
        start, stop = self._bounds(index)
        scratch = self._scratch[index % len(self._scratch)]
        return self._task.read(
            [
                Read(
                    self._task.port.region(rank, message).bytes(start, stop),
                    scratch[rank][: stop - start],
                )
                for rank, message in self._messages.items()
            ]
        )

    def parts(self, index: int) -> list[Any]:
        """By rank, once they have been read."""
        start, stop = self._bounds(index)
        scratch = self._scratch[index % len(self._scratch)]
        return [
            self._seen[rank][start:stop] if rank in self._seen else scratch[rank][: stop - start]
            for rank in range(self._task.port.size)
        ]

    def _bounds(self, index: int) -> tuple[int, int]:
        start = self.starts[index]
        return self._low + start, self._low + min(start + _PIECE, self._size)


def _reduce(task: Task, low: int, source: Any, out: Any) -> Steps:
    """Of all that is offered, as many bytes as `out` has, from byte `low` on. The next piece is
    read while one is reduced."""
    peers = list(others(task.port.rank, task.port.size))
    yield from task.await_all(peers, 0, source.numel())
    pieces, dtype = _Pieces(task, low, source, out.numel()), task.call.source[0].dtype
    reading = pieces.read(0)
    for index, start in enumerate(pieces.starts):
        if reading is not None:
            yield from task.finish(reading)
        reading = pieces.read(index + 1)
        parts = [part.view(dtype) for part in pieces.parts(index)]
        combine(task.call.reduction, parts, out[start : start + _PIECE].view(dtype))
