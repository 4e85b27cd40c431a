"""What users give to a communicator's methods, checked and made a Call. Imports torch.

May import call, reduction, errors. All that can be seen on one rank is refused here, before
anything has begun. Results are always contiguous; a source that is not is copied.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from transport.collectives.call import Call, Kind
from transport.errors import InvalidUse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.collectives.reduction import Reduce

_MAX_TAG = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Asked:
    """The call, and what `Operation.wait` returns."""

    call: Call
    result: Any


class Arguments:
    """For one rank of a group."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def all_reduce(self, tensor: Any, out: Any, reduction: Reduce) -> Asked:
        source = _source(tensor, "tensor")
        target = _result(tensor, "tensor") if out is None else _result(out, "out")
        _alike(source, target, "out")
        call = Call(Kind.ALL_REDUCE, (source,), (target,), reduction)
        return self._asked(call, tensor if out is None else out)

    def broadcast(self, tensor: Any, root: int) -> Asked:
        part = _result(tensor, "tensor")
        mine = self._root(root) == self._rank
        call = Call(Kind.BROADCAST, (part,) if mine else (), () if mine else (part,), root=root)
        return self._asked(call, tensor)

    def reduce(self, tensor: Any, out: Any, root: int, reduction: Reduce) -> Asked:
        source = _source(tensor, "tensor")
        if self._root(root) != self._rank:
            if out is not None:
                raise InvalidUse("out= is for the root of a reduce alone")
            return self._asked(Call(Kind.REDUCE, (source,), (), reduction, root), None)
        target = _result(tensor, "tensor") if out is None else _result(out, "out")
        _alike(source, target, "out")
        call = Call(Kind.REDUCE, (source,), (target,), reduction, root)
        return self._asked(call, tensor if out is None else out)

    def all_gather(self, tensor: Any, out: Any) -> Asked:
        source = _source(tensor, "tensor")
        out = self._new_rows(tensor, source) if out is None else out
        call = Call(Kind.ALL_GATHER, (source,), self._rows(out, source, "out"))
        return self._asked(call, out)

    def gather(self, tensor: Any, out: Any, root: int) -> Asked:
        source = _source(tensor, "tensor")
        if self._root(root) != self._rank:
            if out is not None:
                raise InvalidUse("out= is for the root of a gather alone")
            return self._asked(Call(Kind.GATHER, (source,), root=root), None)
        out = self._new_rows(tensor, source) if out is None else out
        call = Call(Kind.GATHER, (source,), self._rows(out, source, "out"), root=root)
        return self._asked(call, out)

    def scatter(self, tensor: Any, out: Any, root: int) -> Asked:
        if self._root(root) != self._rank:
            if tensor is not None or out is None:
                raise InvalidUse("a rank that is not the root of a scatter gives out= alone")
            return self._asked(Call(Kind.SCATTER, (), (_result(out, "out"),), root=root), out)
        if tensor is None:
            raise InvalidUse("the root of a scatter gives what it scatters")
        sources = self._split(tensor, "tensor")
        out = _new(tensor, sources[0].shape, sources[0]) if out is None else out
        target = _result(out, "out")
        for part in sources:
            _alike(part, target, "out")
        return self._asked(Call(Kind.SCATTER, sources, (target,), root=root), out)

    def reduce_scatter(self, tensor: Any, out: Any, reduction: Reduce) -> Asked:
        sources = self._split(tensor, "tensor")
        mine = sources[self._rank]
        out = _new(tensor, mine.shape, mine) if out is None else out
        target = _result(out, "out")
        _alike(mine, target, "out")
        return self._asked(Call(Kind.REDUCE_SCATTER, sources, (target,), reduction), out)

    def all_to_all(self, tensor: Any, out: Any) -> Asked:
        sources = self._split(tensor, "tensor")
        if out is None:
            if isinstance(tensor, (list, tuple)):
                raise InvalidUse("all_to_all of a list needs out=, a list of what comes from each")
            whole = _tensor(tensor, "tensor")
            out = _new(tensor, whole.shape, whole)
        call = Call(Kind.ALL_TO_ALL, sources, self._split(out, "out", result=True))
        return self._asked(call, out)

    def send(self, tensor: Any, peer: int, tag: int) -> Asked:
        call = Call(Kind.SEND, (_source(tensor, "tensor"),), peer=self._peer(peer), tag=_tag(tag))
        return self._asked(call, None)

    def recv(self, tensor: Any, peer: int, tag: int) -> Asked:
        target = (_result(tensor, "tensor"),)
        call = Call(Kind.RECV, (), target, peer=self._peer(peer), tag=_tag(tag))
        return self._asked(call, tensor)

    # -------------------------------------------------------------------------------------- inside
    def _asked(self, call: Call, result: Any) -> Asked:
        parts = (*call.source, *call.target)
        first = parts[0]
        for part in parts:
            if part.dtype != first.dtype or part.device != first.device:
                raise InvalidUse(
                    f"all tensors of a call have one dtype and device: {first.dtype} on"
                    f" {first.device} is not {part.dtype} on {part.device}"
                )
        _check_overlap(call, self._rank)
        return Asked(call, result)

    def _root(self, root: Any) -> int:
        return _rank(root, self._size, "root")

    def _peer(self, peer: Any) -> int:
        found = _rank(peer, self._size, "peer")
        if found == self._rank:
            raise InvalidUse("a rank cannot send to itself or receive from itself")
        return found

    def _new_rows(self, given: Any, source: torch.Tensor) -> Any:
        return _new(given, (self._size, *source.shape), source)

    def _rows(self, out: Any, source: torch.Tensor, what: str) -> tuple[torch.Tensor, ...]:
        """One part for each rank, each as large as `source`."""
        rows = self._split(out, what, result=True, into=source.numel())
        for row in rows:
            if row.numel() != source.numel():
                raise InvalidUse(
                    f"{what} has {row.numel()} elements for each rank, not {source.numel()}"
                )
        return rows

    def _split(
        self, given: Any, what: str, *, result: bool = False, into: int | None = None
    ) -> tuple[torch.Tensor, ...]:
        """A list of one tensor for each rank, or one whose leading dimension they share."""
        take = _result if result else _source
        if isinstance(given, (list, tuple)):
            if len(given) != self._size:
                raise InvalidUse(
                    f"{what} is a list of {len(given)}, not of one for each of {self._size} ranks"
                )
            return tuple(take(each, f"{what}[{i}]") for i, each in enumerate(given))
        whole = take(given, what)
        if into is not None and whole.numel() == into * self._size:
            return tuple(_cut(whole, self._size))
        if whole.dim() == 0 or whole.shape[0] % self._size:
            raise InvalidUse(
                f"{what} of shape {tuple(whole.shape)} cannot be shared out among {self._size}"
                " ranks: its leading dimension is no multiple"
            )
        shape = (whole.shape[0] // self._size, *whole.shape[1:])
        return tuple(part.view(shape) for part in _cut(whole, self._size))


def _cut(whole: torch.Tensor, size: int) -> list[torch.Tensor]:
    flat = whole.view(-1)
    each = flat.numel() // size
    return [flat[i * each : (i + 1) * each] for i in range(size)]


def _new(given: Any, shape: Sequence[int], like: torch.Tensor) -> Any:
    """A numpy array where that, or a list of them, was given."""
    made = torch.empty(shape, dtype=like.dtype, device=like.device)
    first = given[0] if isinstance(given, (list, tuple)) else given
    return made.numpy() if isinstance(first, np.ndarray) else made


def _tensor(given: Any, what: str) -> torch.Tensor:
    if isinstance(given, np.ndarray):
        if not given.flags.writeable:
            given = given.copy() if what == "tensor" else given
        try:
            given = torch.from_numpy(given)
        except (TypeError, ValueError) as error:
            raise InvalidUse(f"{what}: {error}") from None
    if not isinstance(given, torch.Tensor):
        raise InvalidUse(f"{what} is a torch tensor or a numpy array, not {type(given).__name__}")
    if given.layout is not torch.strided or given.is_quantized or given.device.type == "meta":
        raise InvalidUse(f"{what} is an ordinary dense tensor with memory of its own")
    if given.is_conj() or given.is_neg():
        raise InvalidUse(f"{what} is a lazy view: give its resolve_conj().resolve_neg()")
    return given.detach()


def _source(given: Any, what: str) -> torch.Tensor:
    return _tensor(given, what).contiguous()


def _result(given: Any, what: str) -> torch.Tensor:
    if isinstance(given, np.ndarray) and not given.flags.writeable:
        raise InvalidUse(f"{what} is read-only, and the result goes there")
    tensor = _tensor(given, what)
    if not tensor.is_contiguous():
        raise InvalidUse(
            f"{what} is not contiguous, and the result goes there: give its .contiguous() and copy"
            " it back"
        )
    return tensor


def _alike(source: torch.Tensor, target: torch.Tensor, what: str) -> None:
    if source.numel() != target.numel():
        raise InvalidUse(
            f"{what} has {target.numel()} elements where {source.numel()} are to go there"
        )


def _rank(rank: Any, size: int, what: str) -> int:
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
        raise InvalidUse(f"{what} is a rank, not {rank!r:.80}")
    if not 0 <= rank < size:
        raise InvalidUse(f"{what} is a rank from 0 to {size - 1}, not {rank}")
    return int(rank)


def _tag(tag: Any) -> int:
    if isinstance(tag, bool) or not isinstance(tag, int) or not 0 <= tag <= _MAX_TAG:
        raise InvalidUse(f"a tag is between 0 and {_MAX_TAG}, not {tag!r:.80}")
    return tag


def _check_overlap(call: Call, rank: int) -> None:
    """Results must not share bytes, and with what they are made of only as a whole, where the
    table of `Call` has it."""
    targets, sources = _spans(call.target), _spans(call.source)
    for (_, end), (begin, _) in itertools.pairwise(targets):
        if begin < end:
            raise InvalidUse("results share memory: each needs its own")
    if not targets or not sources or _apart(targets, sources) or _apart(sources, targets):
        return
    shared = _may_be_shared(call, rank)
    for span in sources:
        for other in targets:
            meet = span[0] < other[1] and other[0] < span[1]
            if meet and (span != other or span != shared):
                raise InvalidUse(
                    f"a result of {call.kind.value} shares memory with what it is made of"
                )


def _apart(low: list[tuple[int, int]], high: list[tuple[int, int]]) -> bool:
    return max(end for _, end in low) <= high[0][0]


def _may_be_shared(call: Call, rank: int) -> tuple[int, int] | None:
    if call.kind is Kind.ALL_TO_ALL:
        return None
    one = call.source if len(call.source) == 1 else call.source[rank : rank + 1]
    spans = _spans(one)
    if call.kind in (Kind.ALL_GATHER, Kind.GATHER) and spans != _spans((call.target[rank],)):
        return None
    return spans[0] if spans else None


def _spans(parts: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    ends = [(part.data_ptr(), part.data_ptr() + part.nbytes) for part in parts if part.nbytes]
    return sorted(ends)


def vote(ok: bool) -> torch.Tensor:
    return torch.tensor([int(ok)], dtype=torch.int32)


def check_deadline(seconds: Any) -> float:
    """Raises InvalidUse for what is no number of seconds above 0. 1e9 are the most."""
    valid = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not valid or not math.isfinite(seconds) or seconds <= 0:
        raise InvalidUse(f"a deadline is a number of seconds above 0, not {seconds!r:.80}")
    return min(float(seconds), _LONGEST)


_LONGEST = 1e9  # seconds
