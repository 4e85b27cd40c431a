"""What each kind of call is in NCCL's terms: operations on addresses. Pure, but for `scratch`.

May import call, reduction and ffi's constants. Which operations a call becomes depends on nothing
but what all ranks have alike, for they have to meet; only copies on the own GPU differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from transport.collectives.call import Kind
from transport.collectives.reduction import Premultiplied, Reduction
from transport.ffi import lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transport.collectives.call import Call, Parts
    from transport.collectives.nccl.library import Library

    Scratch = Callable[[int], int]

ALL_REDUCE, BROADCAST, REDUCE = (
    int(lib.TN_NCCL_ALL_REDUCE),
    int(lib.TN_NCCL_BROADCAST),
    int(lib.TN_NCCL_REDUCE),
)
ALL_GATHER, REDUCE_SCATTER = int(lib.TN_NCCL_ALL_GATHER), int(lib.TN_NCCL_REDUCE_SCATTER)
SEND, RECV = int(lib.TN_NCCL_SEND), int(lib.TN_NCCL_RECV)
BEFORE, AFTER = int(lib.TN_NCCL_COPY_BEFORE), int(lib.TN_NCCL_COPY_AFTER)

_BYTE = 1  # ncclUint8: what is only moved is moved as bytes


class Op(NamedTuple):
    """A `struct tn_nccl_op`; `reduction` is a Reduction's number, or what `factor` gave."""

    kind: int
    type: int
    reduction: int
    peer: int
    source: int
    target: int
    size: int  # in elements, of copies in bytes


class Element(NamedTuple):
    """How NCCL sees a dtype that is to be reduced: so many of its elements of which type."""

    type: int
    times: int
    since: tuple[int, int]  # versions of NCCL and of RCCL


_OLD = (0, 0)
_ELEMENTS: dict[str, Element] = {
    "int8": Element(0, 1, _OLD),
    "uint8": Element(1, 1, _OLD),
    "bool": Element(1, 1, _OLD),
    "int32": Element(2, 1, _OLD),
    "uint32": Element(3, 1, _OLD),
    "int64": Element(4, 1, _OLD),
    "uint64": Element(5, 1, _OLD),
    "float16": Element(6, 1, _OLD),
    "float32": Element(7, 1, _OLD),
    "float64": Element(8, 1, _OLD),
    "complex64": Element(7, 2, _OLD),
    "complex128": Element(8, 2, _OLD),
    "bfloat16": Element(9, 1, (21000, 21000)),
    "float8_e4m3fn": Element(10, 1, (22400, 22005)),
    "float8_e5m2": Element(11, 1, (22400, 22005)),
}
_NUMBERS = {
    Reduction.SUM: 0,
    Reduction.PRODUCT: 1,
    Reduction.MAXIMUM: 2,
    Reduction.MINIMUM: 3,
    Reduction.AVERAGE: 4,
}
# Of truth values as bytes: any, or all.
_TRUTHS = {
    Reduction.SUM: 2,
    Reduction.MAXIMUM: 2,
    Reduction.PRODUCT: 3,
    Reduction.MINIMUM: 3,
}
REDUCING = frozenset((Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER))
_AVERAGES = 21000  # the version that brought them


def name_of(part: Any) -> str:
    """A dtype as torch and numpy spell it."""
    return str(part.dtype).removeprefix("torch.")


def refusal(call: Call, library: Library) -> str:
    """Why the library cannot carry a call; "" when it can."""
    if call.kind in (Kind.SEND, Kind.RECV) and call.tag:
        return f"{library.name} does not tell messages apart by a tag"
    parts = (*call.source, *call.target)
    wrong = next((part for part in parts if part.device.type not in ("cuda", "hip")), None)
    if wrong is not None:
        return f"{library.name} carries tensors of GPUs, not of {wrong.device}"
    if call.kind not in REDUCING or not parts:
        return ""
    return _refusal_to_reduce(call, library, name_of(parts[0]))


def _refusal_to_reduce(call: Call, library: Library, dtype: str) -> str:
    element, reduction = _ELEMENTS.get(dtype), call.reduction
    if element is None:
        return f"{library.name} cannot reduce {dtype}"
    whole = "int" in dtype or dtype == "bool"
    needed = element.since[library.name == "RCCL"]
    if isinstance(reduction, Premultiplied):
        if whole or dtype.startswith("float8"):
            return f"{library.name} multiplies no {dtype} by a factor"
        needed = needed if library.has("factors") else library.version + 1
    elif reduction is Reduction.AVERAGE:
        needed = max(needed, _AVERAGES)
    if dtype == "bool" and reduction not in _TRUTHS:
        return f"{library.name} knows no {_word(reduction)} of truth values"
    if element.times > 1 and reduction in (Reduction.PRODUCT, Reduction.MINIMUM, Reduction.MAXIMUM):
        return f"{library.name} knows no {_word(reduction)} of complex numbers"
    if library.version >= needed:
        return ""
    return f"{library.name} {library.version_text} knows no {_word(reduction)} of {dtype}"


def _word(reduction: Any) -> str:
    return "sum with factors" if isinstance(reduction, Premultiplied) else str(reduction.value)


def element_of(part: Any) -> Element:
    return _ELEMENTS[name_of(part)]


class Translator:
    """For one communicator. `scratch` gives that many bytes of the own GPU, until the work ends;
    `factor` the number of a reduction with a factor, for elements of a type."""

    def __init__(
        self, rank: int, ranks: int, scratch: Scratch, factor: Callable[[float, Any], int]
    ) -> None:
        self._rank, self._ranks = rank, ranks
        self._scratch, self._factor = scratch, factor
        self._ways: dict[Kind, Callable[[Call], Iterator[Op]]] = {
            Kind.ALL_REDUCE: self._all_reduce,
            Kind.BROADCAST: self._broadcast,
            Kind.REDUCE: self._reduce,
            Kind.ALL_GATHER: self._all_gather,
            Kind.REDUCE_SCATTER: self._reduce_scatter,
            Kind.ALL_TO_ALL: self._all_to_all,
            Kind.GATHER: self._gather,
            Kind.SCATTER: self._scatter,
            Kind.SEND: self._send,
            Kind.RECV: self._recv,
            Kind.BARRIER: self._barrier,
        }

    def ops(self, call: Call) -> Iterator[Op]:
        """In the order in which they belong into one group. Of nothing there are none."""
        return (op for op in self._ways[call.kind](call) if op.size)

    # ------------------------------------------------------------------------------------ reducing
    def _reducing(self, kind: int, call: Call, source: Any, target: int, root: int = 0) -> Op:
        element, reduction = element_of(source), call.reduction
        if isinstance(reduction, Premultiplied):
            number = self._factor(reduction.factor, source)
        elif name_of(source) == "bool":
            number = _TRUTHS[reduction]
        else:
            number = _NUMBERS[reduction]
        count = source.numel() * element.times
        return Op(kind, element.type, number, root, source.data_ptr(), target, count)

    def _all_reduce(self, call: Call) -> Iterator[Op]:
        yield self._reducing(ALL_REDUCE, call, call.source[0], call.target[0].data_ptr())

    def _reduce(self, call: Call) -> Iterator[Op]:
        # Only the root's target is written to.
        target = call.target[0] if call.target else call.source[0]
        yield self._reducing(REDUCE, call, call.source[0], target.data_ptr(), call.root)

    def _reduce_scatter(self, call: Call) -> Iterator[Op]:
        target = call.target[0]
        if not _even(call.source):
            for root, part in enumerate(call.source):
                into = target if root == self._rank else part
                yield self._reducing(REDUCE, call, part, into.data_ptr(), root)
            return
        address = _beginning(call.source)
        if address is None:
            address = self._scratch(target.nbytes * self._ranks)
            for index, part in enumerate(call.source):
                yield _copy(BEFORE, part.data_ptr(), address + index * part.nbytes, part.nbytes)
        op = self._reducing(REDUCE_SCATTER, call, call.source[0], target.data_ptr())
        yield op._replace(source=address)

    # -------------------------------------------------------------------------------------- moving
    def _broadcast(self, call: Call) -> Iterator[Op]:
        part = (call.target or call.source)[0]
        source = call.source[0] if call.source else part
        yield _moving(BROADCAST, source.data_ptr(), part.data_ptr(), part.nbytes, call.root)

    def _all_gather(self, call: Call) -> Iterator[Op]:
        source, targets = call.source[0], call.target
        if not _even(targets):
            for root, part in enumerate(targets):
                of = source if root == self._rank else part
                yield _moving(BROADCAST, of.data_ptr(), part.data_ptr(), part.nbytes, root)
            return
        address = _beginning(targets)
        whole = address if address is not None else self._scratch(source.nbytes * self._ranks)
        yield _moving(ALL_GATHER, source.data_ptr(), whole, source.nbytes)
        if address is None:
            for index, part in enumerate(targets):
                yield _copy(AFTER, whole + index * part.nbytes, part.data_ptr(), part.nbytes)

    def _all_to_all(self, call: Call) -> Iterator[Op]:
        yield from self._own(call.source[self._rank], call.target[self._rank])
        for peer in self._others():
            yield _to(peer, call.source[peer])
            yield _from(peer, call.target[peer])

    def _gather(self, call: Call) -> Iterator[Op]:
        if self._rank != call.root:
            yield _to(call.root, call.source[0])
            return
        yield from self._own(call.source[0], call.target[self._rank])
        for peer in self._others():
            yield _from(peer, call.target[peer])

    def _scatter(self, call: Call) -> Iterator[Op]:
        if self._rank != call.root:
            yield _from(call.root, call.target[0])
            return
        yield from self._own(call.source[self._rank], call.target[0])
        for peer in self._others():
            yield _to(peer, call.source[peer])

    def _send(self, call: Call) -> Iterator[Op]:
        yield _to(call.peer, call.source[0])

    def _recv(self, call: Call) -> Iterator[Op]:
        yield _from(call.peer, call.target[0])

    def _barrier(self, _call: Call) -> Iterator[Op]:
        word = self._scratch(_WORD)
        yield Op(ALL_REDUCE, _BYTE, _NUMBERS[Reduction.MAXIMUM], 0, word, word, 1)

    def _own(self, source: Any, target: Any) -> Iterator[Op]:
        if source.data_ptr() != target.data_ptr():
            yield _copy(BEFORE, source.data_ptr(), target.data_ptr(), source.nbytes)

    def _others(self) -> Iterator[int]:
        return (peer for peer in range(self._ranks) if peer != self._rank)


_WORD = 512


def _even(parts: Parts) -> bool:
    return all(part.nbytes == parts[0].nbytes for part in parts)


def _beginning(parts: Parts) -> int | None:
    """Of parts that lie one behind the other; None where they do not."""
    first, step = parts[0].data_ptr(), parts[0].nbytes
    whole = all(part.data_ptr() == first + i * step for i, part in enumerate(parts))
    return first if whole else None


def _moving(kind: int, source: int, target: int, nbytes: int, peer: int = 0) -> Op:
    return Op(kind, _BYTE, 0, peer, source, target, nbytes)


def _copy(kind: int, source: int, target: int, nbytes: int) -> Op:
    return Op(kind, _BYTE, 0, 0, source, target, nbytes)


def _to(peer: int, part: Any) -> Op:
    return Op(SEND, _BYTE, 0, peer, part.data_ptr(), 0, part.nbytes)


def _from(peer: int, part: Any) -> Op:
    return Op(RECV, _BYTE, 0, peer, 0, part.data_ptr(), part.nbytes)
