"""Each kind of call in gloo's terms. Imports torch; may import call, reduction.

Data that is only moved is moved as bytes, whatever its dtype. Where gloo cannot reduce a dtype
itself, it reduces another one that gives exactly the same, or the call is refused.
"""

from __future__ import annotations

import datetime
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ScatterOptions,
)

from transport.collectives.call import Kind
from transport.collectives.reduction import Premultiplied, Reduction

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.collectives.call import Call
    from transport.collectives.reduction import Reduce

_REDUCING = (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER)
_OPS = {
    Reduction.SUM: ReduceOp.SUM,
    Reduction.PRODUCT: ReduceOp.PRODUCT,
    Reduction.MINIMUM: ReduceOp.MIN,
    Reduction.MAXIMUM: ReduceOp.MAX,
}
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
_INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
# What has room for them: the sum of a wider type, cut, is the sum.
_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
# Any of several is True: their greatest; all of them: their least.
_LOGICAL = {
    Reduction.SUM: Reduction.MAXIMUM,
    Reduction.MAXIMUM: Reduction.MAXIMUM,
    Reduction.PRODUCT: Reduction.MINIMUM,
    Reduction.MINIMUM: Reduction.MINIMUM,
}


class Begun:
    """One call. `finish` is for once it is done, and raises RuntimeError if it failed."""

    def __init__(self, work: Any, after: Callable[[], object] | None, keep: Any) -> None:
        self._work = work
        self._after = after
        self._keep = keep  # until then

    def done(self) -> bool:
        return self._work is None or self._work.is_completed()

    def wait(self, timeout: float) -> bool:
        if not self.done():
            try:
                self._work.wait(datetime.timedelta(seconds=max(timeout, 0.001)))
            except RuntimeError:  # the time is over, or it has failed: `finish` says so
                return self.done()
        return True

    def finish(self) -> None:
        if self._work is not None:
            self._work.wait()
        if self._after is not None:
            self._after()

    def abandon(self) -> None:
        """Its connections have been cut: it ends by that, and may use its memory until then."""


class Message(Begun):
    """A send or receive: gloo cuts the connection where a wait for it runs out, and says that it is
    done only to who waits; so a thread waits for as long as it takes. That may be for ever, for
    gloo forgets messages of connections that break: so it receives into memory of its own, which
    `after` copies, and can be abandoned."""

    def __init__(self, work: Any, after: Callable[[], object] | None, keep: Any) -> None:
        super().__init__(work, after, keep)
        self._ended = threading.Event()
        self._error: RuntimeError | None = None
        threading.Thread(target=self._watch, name="transport-gloo", daemon=True).start()

    def _watch(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            self._error = error
        self._ended.set()

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout: float) -> bool:
        return self._ended.wait(max(timeout, 0))

    def finish(self) -> None:
        if self._error is not None:
            raise self._error
        if self._after is not None:
            self._after()

    def abandon(self) -> None:
        if not self._ended.is_set():
            self._error = RuntimeError("the message was abandoned")
            self._ended.set()


class Calls:
    """For one rank of a group."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def refusal(self, call: Call, dtype: torch.dtype) -> str:
        if call.kind not in _REDUCING:
            return ""
        return _refusal(call.reduction, dtype)

    def begin(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        """Raises RuntimeError where gloo has failed before."""
        begin: Callable[..., Begun] = getattr(self, f"_{call.kind.value}")
        return begin(gloo, call, limit)

    # ----------------------------------------------------------------------------------- reductions
    def _all_reduce(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        target, source = call.target[0], call.source[0]
        return self._reduced(gloo, call, limit, source, target)

    def _reduce(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        # gloo uses what it is given as scratch, also where it is not the root.
        target = call.target[0] if call.target else torch.empty_like(call.source[0])
        return self._reduced(gloo, call, limit, call.source[0], target)

    def _reduce_scatter(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        joined = torch.cat([part.reshape(-1) for part in call.source])
        before = sum(part.numel() for part in call.source[: self._rank])
        mine = joined[before : before + call.target[0].numel()]
        begun = self._reduced(gloo, call, limit, joined, joined)
        return _then(begun, lambda: call.target[0].copy_(mine.view_as(call.target[0])))

    def _reduced(
        self,
        gloo: Any,
        call: Call,
        limit: datetime.timedelta,
        source: torch.Tensor,
        target: torch.Tensor,
    ) -> Begun:
        if source.numel() == 0:
            return Begun(None, None, call)
        work_on, reduction, after = _prepared(call.reduction, source, target, self._size)
        options: Any = AllreduceOptions() if call.kind is not Kind.REDUCE else ReduceOptions()
        options.reduceOp = _OPS[reduction]
        options.timeout = limit
        if call.kind is not Kind.REDUCE:
            return Begun(gloo.allreduce([work_on], options), after, (call, work_on))
        options.rootRank = call.root
        return Begun(gloo.reduce([work_on], options), after, (call, work_on))

    # -------------------------------------------------------------------------------- data is moved
    def _broadcast(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        part = _bytes((call.source or call.target)[0])
        if not part.numel():
            return Begun(None, None, call)
        options = BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = call.root, 0, limit
        return Begun(gloo.broadcast([part], options), None, (call, part))

    def _all_gather(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        source, targets = _bytes(call.source[0]), [_bytes(part) for part in call.target]
        if not source.numel():
            return Begun(None, None, call)
        options = AllgatherOptions()
        options.timeout = limit
        work = gloo.allgather([targets], [source], options)
        return Begun(work, None, (call, targets, source))

    def _gather(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        source, targets = _bytes(call.source[0]), [_bytes(part) for part in call.target]
        if not source.numel():
            return Begun(None, None, call)
        options = GatherOptions()
        options.rootRank, options.timeout = call.root, limit
        work = gloo.gather([targets] if targets else [], [source], options)
        return Begun(work, None, (call, targets, source))

    def _scatter(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        target, sources = _bytes(call.target[0]), [_bytes(part) for part in call.source]
        if not target.numel():
            return Begun(None, None, call)
        options = ScatterOptions()
        options.rootRank, options.timeout = call.root, limit
        work = gloo.scatter([target], [sources] if sources else [], options)
        return Begun(work, None, (call, target, sources))

    def _all_to_all(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        sources, targets = ([_bytes(part) for part in side] for side in (call.source, call.target))
        source = torch.cat(sources)
        target = torch.empty(sum(part.numel() for part in targets), dtype=torch.uint8)
        coming, going = ([part.numel() for part in side] for side in (targets, sources))
        options = AllToAllOptions()
        options.timeout = limit
        work = gloo.alltoall_base(target, source, coming, going, options)

        def take() -> None:
            begin = 0
            for part in targets:
                part.copy_(target[begin : begin + part.numel()])
                begin += part.numel()

        return Begun(work, take, (call, source, target))

    def _send(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        part = _bytes(call.source[0])
        return Message(gloo.send([part], call.peer, call.tag), None, (call, part))

    def _recv(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        target = _bytes(call.target[0])
        part = torch.empty_like(target)
        work = gloo.recv([part], call.peer, call.tag)
        return Message(work, lambda: target.copy_(part), (call, part))

    def _barrier(self, gloo: Any, call: Call, limit: datetime.timedelta) -> Begun:
        options = BarrierOptions()
        options.timeout = limit
        return Begun(gloo.barrier(options), None, call)


def _then(begun: Begun, more: Callable[[], object]) -> Begun:
    former = begun._after

    def after() -> None:
        if former is not None:
            former()
        more()

    begun._after = after
    return begun


def _bytes(part: torch.Tensor) -> torch.Tensor:
    return part.detach().reshape(-1).view(torch.uint8)


def _refusal(reduction: Reduce, dtype: torch.dtype) -> str:
    exact = dtype in _INTEGERS or dtype in _WIDER or dtype in (torch.bool, torch.uint64)
    if dtype in _FLOATS:
        return ""
    if dtype in _COMPLEX:
        summed = reduction in (Reduction.SUM, Reduction.AVERAGE)
        return "" if summed else f"complex numbers have no {_name(reduction)}"
    if not exact:
        return f"gloo has no arithmetic of {dtype}"
    if reduction is Reduction.AVERAGE or isinstance(reduction, Premultiplied):
        return f"{_name(reduction)} of {dtype} would be cut to whole numbers"
    if dtype is torch.uint64 and reduction in (Reduction.MINIMUM, Reduction.MAXIMUM):
        return f"gloo has no {_name(reduction)} of torch.uint64"
    return ""


def _name(reduction: Reduce) -> str:
    return reduction.value if isinstance(reduction, Reduction) else "premultiplied sum"


def _prepared(
    reduction: Reduce, source: torch.Tensor, target: torch.Tensor, size: int
) -> tuple[torch.Tensor, Reduction, Callable[[], object] | None]:
    """What gloo is to reduce in place (it has this rank's values), how, and what then gives
    `target`: for an average it is divided."""
    source, target = source.detach(), target.detach()
    dtype = source.dtype
    if dtype in _COMPLEX:
        source, target = torch.view_as_real(source), torch.view_as_real(target)
    if isinstance(reduction, Premultiplied):
        torch.mul(source, reduction.factor, out=target)
        return target, Reduction.SUM, None
    if dtype in _WIDER:
        wide = source.to(_WIDER[dtype])
        return wide, reduction, lambda: target.copy_(wide)
    if target.data_ptr() != source.data_ptr():
        target.copy_(source)
    if dtype is torch.bool:
        return target.view(torch.uint8), _LOGICAL[reduction], None
    if dtype is torch.uint64:
        return target.view(torch.int64), reduction, None
    if reduction is Reduction.AVERAGE:
        return target, Reduction.SUM, lambda: target.div_(size)
    return target, reduction, None
