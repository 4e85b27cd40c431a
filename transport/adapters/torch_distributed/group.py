"""A group as torch knows it: every method that torch calls, over one Communicator.

May import work, collectives and errors. Imports torch. On 2.13 a Python class has to be the whole
ProcessGroup; from 2.14 on it is the backend of a device. Both have the same methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from transport.adapters.torch_distributed.work import TransportWork
from transport.collectives.reduction import Premultiplied, Reduction
from transport.errors import InvalidUse, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transport.collectives.communicator import Communicator
    from transport.collectives.reduction import Reduce

Tensors = list[torch.Tensor]

_REDUCTIONS = {
    "SUM": Reduction.SUM,
    "PRODUCT": Reduction.PRODUCT,
    "MIN": Reduction.MINIMUM,
    "MAX": Reduction.MAXIMUM,
    "AVG": Reduction.AVERAGE,
}


class Methods:
    """What `TransportGroup` and `TransportBackend` share. Ranks are those of the group."""

    _comm: Communicator

    def set_up(self, comm: Communicator) -> None:
        self._comm = comm

    @property
    def communicator(self) -> Communicator:
        """The group as this library has it: `error`, `lost`, `shrink`."""
        return self._comm

    def getBackendName(self) -> str:
        return "transport"

    # ------------------------------------------------------------------------------------ reducing
    def allreduce(self, tensors: Tensors, opts: Any = None) -> TransportWork:
        return self._reduced(tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> TransportWork:
        return self._reduced(tensors, opts)

    def _reduced(self, tensors: Tensors, opts: Any) -> TransportWork:
        outs, finish = _results(tensors)
        op = _reduction(opts)
        made = self._all(lambda i: self._comm.all_reduce(outs[i], op=op), len(outs))
        return TransportWork(made, tensors, finish)

    def reduce(self, tensors: Tensors, opts: Any) -> TransportWork:
        op, root = _reduction(opts), int(opts.rootRank)
        outs, finish = _results(tensors)
        made = [self._comm.reduce(each, root, op=op) for each in outs]
        return TransportWork(made, tensors, finish)

    def reduce_scatter(
        self, outputs: Tensors, inputs: list[Tensors], opts: Any = None
    ) -> TransportWork:
        op = _reduction(opts)
        outs, finish = _results(outputs)
        pairs = list(zip(inputs, outs, strict=True))
        made = [self._comm.reduce_scatter(parts, out=out, op=op) for parts, out in pairs]
        return TransportWork(made, outputs, finish)

    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        opts: Any = None,
    ) -> TransportWork:
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> TransportWork:
        op = _reduction(opts)
        outs, finish = _results(outputs)
        parts = [self._cut(each) for each in inputs]
        made = self._all(
            lambda i: self._comm.reduce_scatter(parts[i], out=outs[i], op=op), len(outs)
        )
        return TransportWork(made, outputs, finish)

    # -------------------------------------------------------------------------------------- moving
    def broadcast(self, tensors: Tensors, opts: Any) -> TransportWork:
        outs, finish = _results(tensors)
        made = [self._comm.broadcast(each, int(opts.rootRank)) for each in outs]
        return TransportWork(made, tensors, finish)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> TransportWork:
        made, ends = [], []
        for rows, source in zip(outputs, inputs, strict=True):
            outs, finish = _results(rows)
            if any(out.numel() != source.numel() for out in outs):
                made += self._uneven(source, outs)
            else:
                made.append(self._comm.all_gather(source, out=outs))
            ends.append(finish)
        return TransportWork(made, outputs, _together(ends))

    def _uneven(self, source: torch.Tensor, outs: Tensors) -> list[Any]:
        """A gather of parts of several sizes: each rank's by a broadcast of its own."""
        outs[self._comm.rank].copy_(source.view_as(outs[self._comm.rank]))
        return [self._comm.broadcast(out, root) for root, out in enumerate(outs)]

    def allgather_coalesced(
        self, outputs: list[Tensors], inputs: Tensors, opts: Any = None
    ) -> TransportWork:
        return self.allgather(_by_input(outputs, len(inputs)), inputs, opts)

    def all_gather_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        opts: Any = None,
    ) -> TransportWork:
        return self.all_gather_single_coalesced([output], [source], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> TransportWork:
        outs, finish = _results(outputs)
        parts = [self._cut(each) for each in outs]
        made = self._all(lambda i: self._comm.all_gather(inputs[i], out=parts[i]), len(outs))
        return TransportWork(made, outputs, finish)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> TransportWork:
        root = int(opts.rootRank)
        if self._comm.rank != root:
            return TransportWork([self._comm.gather(inputs[0], root)], [])
        outs, finish = _results(outputs[0])
        return TransportWork([self._comm.gather(inputs[0], root, out=outs)], outputs, finish)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> TransportWork:
        root = int(opts.rootRank)
        outs, finish = _results(outputs)
        parts = inputs[0] if self._comm.rank == root else None
        return TransportWork([self._comm.scatter(parts, root, out=outs[0])], outputs, finish)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> TransportWork:
        outs, finish = _results(outputs)
        return TransportWork([self._comm.all_to_all(list(inputs), out=outs)], outputs, finish)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> TransportWork:
        outs, finish = _results([output])
        parts = self._cut(source, input_splits)
        target = self._cut(outs[0], output_splits)
        return TransportWork([self._comm.all_to_all(parts, out=target)], [output], finish)

    # ------------------------------------------------------------------------------------ messages
    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> TransportWork:
        made = [self._comm.send(each, peer, tag=self._tag(each, tag)) for each in tensors]
        return TransportWork(made, tensors)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> TransportWork:
        outs, finish = _results(tensors)
        made = [self._comm.recv(each, peer, tag=self._tag(each, tag)) for each in outs]
        return TransportWork(made, tensors, finish)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> TransportWork:
        raise Unavailable("a message is received from a rank that is named", "give src=")

    def barrier(self, opts: Any = None) -> TransportWork:
        return TransportWork([self._comm.barrier()], [])

    # ------------------------------------------------------------------------------------- the end
    def abort(self) -> None:
        self._comm.close()

    def shutdown(self) -> None:
        self._comm.close()

    # -------------------------------------------------------------------------------------- inside
    def _all(self, call: Callable[[int], Any], count: int) -> list[Any]:
        """Of several tensors, as one operation."""
        if count == 1:
            return [call(0)]
        with self._comm.coalesced() as together:
            for index in range(count):
                call(index)
        return [together]

    def _cut(self, whole: torch.Tensor, rows: Sequence[int] = ()) -> Tensors:
        """One part for each rank: of equal sizes, or so many rows of its leading dimension."""
        whole = whole.contiguous()
        if rows:
            return list(torch.split(whole, list(rows)))
        flat = whole.view(-1)
        if flat.numel() % self._comm.size:
            raise InvalidUse(
                f"{flat.numel()} elements cannot be shared out among {self._comm.size} ranks"
            )
        each = flat.numel() // self._comm.size
        return list(torch.split(flat, each)) if each else [flat] * self._comm.size

    @staticmethod
    def _tag(tensor: torch.Tensor, tag: int) -> int:
        """NCCL tells messages apart by their order alone, as in torch's own backend."""
        return tag if tensor.device.type == "cpu" else 0


def _by_input(outputs: list[Tensors], count: int) -> list[Tensors]:
    """Torch gives these by rank; here they are wanted by input."""
    return [[row[index] for row in outputs] for index in range(count)]


def _results(tensors: Sequence[torch.Tensor]) -> tuple[Tensors, Callable[[], None] | None]:
    """Contiguous tensors for results, and what copies those back that are not the given ones."""
    if any(each.layout is not torch.strided for each in tensors):
        raise InvalidUse("sparse tensors are not carried here: give to_dense(), or use gloo")
    outs = [each if each.is_contiguous() else each.contiguous() for each in tensors]
    apart = [(to, out) for to, out in zip(tensors, outs) if to is not out]
    if not apart:
        return outs, None

    def finish() -> None:
        with torch.no_grad():
            for to, out in apart:
                to.copy_(out)

    return outs, finish


def _together(ends: Sequence[Callable[[], None] | None]) -> Callable[[], None] | None:
    called = [each for each in ends if each is not None]

    def finish() -> None:
        for each in called:
            each()

    return finish if called else None


def _reduction(opts: Any) -> Reduce:
    """Of torch's options; what they lack is a sum."""
    given = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    op = getattr(given, "op", given)
    name = str(op).rpartition(".")[2]
    if name in _REDUCTIONS:
        return _REDUCTIONS[name]
    if name == "PREMUL_SUM":
        return Premultiplied(_factor(given))
    raise Unavailable(f"there is no reduction {name} here", "use gloo for it")


def _factor(given: Any) -> float:
    _, state = given.__getstate__()
    if isinstance(state, torch.Tensor):
        return float(state.item())
    return float(state)


if TYPE_CHECKING:

    class _Whole:
        """torch's classes declare less than they take."""

        def __init__(self, rank: int, size: int) -> None: ...

    class _Part(_Whole): ...

else:
    _Whole, _Part = dist.ProcessGroup, c10d.Backend


class TransportGroup(Methods, _Whole):
    """The whole group, for torch 2.13."""

    def __init__(self, rank: int, size: int) -> None:
        _Whole.__init__(self, rank, size)
        self._name = ""

    @property
    def group_name(self) -> str:
        """As torch has named it: functional collectives look it up. Torch asks for it, too, once
        it has forgotten the group."""
        names: Any = dist.distributed_c10d._world.pg_names
        self._name = str(names.get(self, self._name))
        return self._name


class TransportBackend(Methods, _Part):
    """The backend of a device, from torch 2.14 on."""

    def __init__(self, rank: int, size: int) -> None:
        _Part.__init__(self, rank, size)

    @property
    def supports_coalescing(self) -> bool:
        return False
