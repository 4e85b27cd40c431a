"""Many blocks of one memory, described by arrays: one object however many they are.

May import memory, ffi and errors. The numbers are checked and made into ranges by one call into C,
which reads them where they are: in numpy arrays, torch tensors, `array.array`s.
"""

from __future__ import annotations

import operator
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from transport.errors import InvalidUse, OutOfRange
from transport.ffi import ffi, last_error, lib
from transport.memory.host import View, host_view, view
from transport.memory.layout import is_contiguous

if TYPE_CHECKING:
    from transport.memory.remote import RemoteRegion

_BLOCKS = ffi.typeof("struct tn_blocks *")
_RANGES = ffi.typeof("struct tn_range[]")
_COUNT = ffi.typeof("uint64_t *")
_RANGE_BYTES = int(ffi.sizeof("struct tn_range"))
_WIDTHS = {"int64": 8, "int32": 4}


class Blocks:
    """Parts of a memory, given by arrays of numbers, as one side of a `Read` or a `Write`.

    `Blocks(memory, offsets, lengths)`: block i has `lengths[i]` bytes from byte `offsets[i]` on, of
    a contiguous memory; `lengths` may be one number for all, or be left out if the other side has
    them. `Blocks(memory, pages=[...])`: block i is `memory[pages[i]]`; with `page_bytes` the memory
    is cut into pages of that size instead. `memory` is all that a request takes: a tensor, array,
    buffer or Region on the local side, a RemoteRegion on the other.

    Numbers are int64 or int32 arrays or tensors with one dimension, or sequences of integers. An
    array is read when a transfer is submitted or prepared. The other side of a request is Blocks,
    too, or contiguous memory that the blocks fill one after another.
    """

    __slots__ = ("lengths", "memory", "offsets", "page_bytes", "pages")

    def __init__(
        self,
        memory: Any,
        offsets: Any = None,
        lengths: Any = None,
        *,
        pages: Any = None,
        page_bytes: int | None = None,
    ) -> None:
        if (offsets is None) == (pages is None):
            raise InvalidUse("blocks are at `offsets`, or they are `pages`: give one of the two")
        if pages is not None and lengths is not None:
            raise InvalidUse("pages have no `lengths`; all are of `page_bytes`")
        if pages is None and page_bytes is not None:
            raise InvalidUse("`page_bytes` is of `pages`; blocks at `offsets` have `lengths`")
        self.memory = memory
        self.offsets = _kept(offsets, "offsets")
        self.lengths = lengths if _is_scalar(lengths) else _kept(lengths, "lengths")
        self.pages = _kept(pages, "pages")
        self.page_bytes = page_bytes

    def __len__(self) -> int:
        """How many they are."""
        places = self.offsets if self.pages is None else self.pages
        return len(places)

    def __repr__(self) -> str:
        what = "blocks" if self.pages is None else "pages"
        return f"<Blocks: {len(self)} {what} of {self.memory!r:.80}>"


def memory_of(side: Any) -> Any:
    """What the side of a request is, or is a part of."""
    return side.memory if type(side) is Blocks else side


def ranges_of(
    local: Any, remote: Any, here: View, region: int, at: int, *, written: str
) -> memoryview:
    """The packed ranges (struct tn_range) of a request that has Blocks on a side.

    `here` is the view of the local memory. Raises InvalidUse, OutOfRange for the first bad block.
    """
    sides = (
        _side(local, _near(here), "local", written),
        _side(remote, _far(remote), "remote", written),
    )
    count = _count(*sides)
    blocks, filled = ffi.new(_BLOCKS), ffi.new(_COUNT)
    keep = [_describe(part, side) for part, side in zip((blocks.local, blocks.remote), sides)]
    blocks.local_region = ffi.cast("struct tn_region *", region)
    blocks.count, blocks.remote_index = count, at
    space = bytearray(count * _RANGE_BYTES)
    status = lib.tn_blocks_fill(blocks, ffi.from_buffer(_RANGES, space), filled)
    del keep  # the numbers until here
    if status < 0:
        raise OutOfRange(last_error())
    return memoryview(space)[: filled[0] * _RANGE_BYTES]


class _Memory(NamedTuple):
    """What is asked about a memory, on either side."""

    start: int
    nbytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    contiguous: bool


class _Numbers(NamedTuple):
    """An array of numbers as C reads it."""

    address: int
    stride: int
    width: int
    many: int | None  # None: one for all
    owner: Any


class _Side(NamedTuple):
    start: int
    nbytes: int
    places: _Numbers | None
    lengths: _Numbers | None
    pages: int
    step: int


def _near(here: View) -> _Memory:
    shape, strides = here.shape, here.strides
    return _Memory(here.address, here.nbytes, shape, strides, here.itemsize, here.contiguous)


def _far(remote: Any) -> _Memory:
    memory: RemoteRegion = memory_of(remote)
    return _Memory(
        memory._offset,
        memory._nbytes,
        memory._shape,
        memory._strides,
        memory.itemsize,
        memory._contiguous,
    )


def _side(side: Any, memory: _Memory, name: str, written: str) -> _Side:
    if type(side) is Blocks and side.pages is not None:
        return _paged(side, memory, name, written)
    if not memory.contiguous:
        raise InvalidUse(f"the {name} side is not contiguous; only `pages` of it can be blocks")
    places = lengths = None
    if type(side) is Blocks:
        places = _numbers(side.offsets, "offsets")
        lengths = None if side.lengths is None else _numbers(side.lengths, "lengths")
        if lengths is not None and lengths.many not in (None, places.many):
            raise InvalidUse(f"the {name} side has {places.many} offsets, {lengths.many} lengths")
    return _Side(memory.start, memory.nbytes, places, lengths, 0, 0)


def _paged(side: Blocks, memory: _Memory, name: str, written: str) -> _Side:
    size, step, count = _page(side, memory, name)
    if name == written and abs(step) < size and count > 1:
        raise InvalidUse(f"pages of the {name} side share bytes (an expanded tensor?)")
    places, lengths = _numbers(side.pages, "pages"), _numbers(size, "page_bytes")
    # C takes 0 pages for "no pages"; what has none has no byte either.
    nbytes = memory.nbytes if count else 0
    return _Side(memory.start, nbytes, places, lengths, count, step)


def _page(side: Blocks, memory: _Memory, name: str) -> tuple[int, int, int]:
    """Bytes of a page, from one page to the next, and how many the memory has."""
    if side.page_bytes is None:
        if not memory.shape:
            raise InvalidUse(f"the {name} side has no dimension to take pages of")
        inner = memory.shape[1:], memory.strides[1:], memory.itemsize
        if not is_contiguous(*inner):
            raise InvalidUse(f"a page of the {name} side is not contiguous")
        size = memory.nbytes // memory.shape[0] if memory.shape[0] else 0
        return size, memory.strides[0], memory.shape[0]
    size = _whole(side.page_bytes, "page_bytes")
    if not memory.contiguous:
        raise InvalidUse(f"the {name} side is not contiguous, so it has no pages of {size} bytes")
    if size < 1 or memory.nbytes % size:
        raise InvalidUse(f"the {memory.nbytes} bytes of the {name} side are no pages of {size}")
    return size, size, memory.nbytes // size


def _count(local: _Side, remote: _Side) -> int:
    counts = [side.places.many for side in (local, remote) if side.places is not None]
    if len(set(counts)) != 1:
        raise InvalidUse(f"{counts[0]} local blocks for {counts[1]} remote ones")
    if local.lengths is None and remote.lengths is None:
        raise InvalidUse("one side must tell the lengths of the blocks")
    return counts[0] or 0


def _describe(out: Any, side: _Side) -> list[Any]:
    """Fills a struct tn_blocks_side; what must live until C has read it."""
    out.start, out.bytes, out.pages, out.step = side.start, side.nbytes, side.pages, side.step
    for where, numbers in ((out.places, side.places), (out.lengths, side.lengths)):
        if numbers is not None:
            where.at = ffi.cast("void *", numbers.address)
            where.stride, where.width = numbers.stride, numbers.width
    return [side.places, side.lengths]


# ----------------------------------------------------------------------------------------- numbers
def _is_scalar(x: Any) -> bool:
    return isinstance(x, int) or getattr(x, "shape", None) == ()


def _kept(x: Any, what: str) -> Any:
    """An array as it is, a sequence of integers as an array."""
    if x is None:
        return None
    if not isinstance(x, (list, tuple, range)):
        _array(x, what)
        return x
    try:
        return array("q", x)
    except (TypeError, OverflowError):
        return array("q", [_whole(item, f"{what}[{i}]") for i, item in enumerate(x)])


def _numbers(x: Any, what: str) -> _Numbers:
    if _is_scalar(x):
        found = view(array("q", [_whole(x, what)]))
        return _Numbers(found.address, 0, 8, None, found)
    return _array(x, what)


def _array(x: Any, what: str) -> _Numbers:
    found = None if _is_scalar(x) else host_view(x, what)
    width = _WIDTHS.get(found.dtype or "") if found else None
    if found is None or width is None or len(found.shape) != 1:
        shown = f"{found.dtype or 'bytes'}{list(found.shape)}" if found else repr(x)
        raise InvalidUse(
            f"{what} are integers in a list or an array of one dimension and dtype int64 or int32,"
            f" not {shown}"
        )
    # `found` pins the memory: C reads it in this very call.
    return _Numbers(found.address, found.strides[0], width, found.shape[0], found)


def _whole(x: Any, what: str) -> int:
    try:
        number = operator.index(x)
    except TypeError:
        raise InvalidUse(f"{what} is no integer: {x!r:.80}") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidUse(f"{what} is {number}, which 64 bits do not hold")
    return number
