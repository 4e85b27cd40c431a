"""From requests to the plain structs that C takes: checks, grouping by peer, strided pairs to rows.

May import memory, ffi, types, errors, blocks, copies and packing. Ranges are packed with struct,
not through cffi, so that a batch of 100,000 requests stays cheap; neighbours become one range. One
C call takes all requests of one peer and kind.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from transport.engine.blocks import Blocks, memory_of, ranges_of
from transport.engine.copies import Copies
from transport.errors import InvalidUse, RemoteAccessError, Status
from transport.memory.host import View, view
from transport.memory.layout import MAX_OUTER, bytes_rows, overlaps_itself, pair_rows, span
from transport.memory.region import Region
from transport.memory.remote import RemoteRegion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transport.memory.layout import Rows
    from transport.memory.remote import Owner

    # Finds the region of a local view, as the number in a range; adds its NativeRegion to the pins.
    Register = Callable[[View, list[Any]], int]

READ, WRITE = 1, 2  # enum tn_op; the same bits as enum tn_access
FETCH_ADD, COMPARE_SWAP = 3, 4  # enum tn_op
OP_NAMES = {READ: "read", WRITE: "write", FETCH_ADD: "fetch_add", COMPARE_SWAP: "compare_swap"}

# struct tn_range: local_address, local_region, remote_offset, length, rows, local_stride,
# remote_stride, remote, outer.
RANGE = struct.Struct("<QQQQQqqII")
# struct tn_outer: dims, and of each count, local_stride, remote_stride.
OUTER = struct.Struct("<Q" + MAX_OUTER * "Qqq")
_pack = RANGE.pack
KEY_BYTES = 4


@dataclass(frozen=True, slots=True)
class Read:
    """Bring what `remote` names into `into` (a tensor, array, buffer or Region).

    Either may be `Blocks`.
    """

    remote: RemoteRegion | Blocks
    into: Any


@dataclass(frozen=True, slots=True)
class Write:
    """Bring the local memory `source` to where `to` names. Either may be `Blocks`."""

    source: Any
    to: RemoteRegion | Blocks


class Part:
    """All requests of one kind to one engine: what one native call submits."""

    __slots__ = ("_index", "n_outers", "op", "outers", "owner", "owners", "ranges")

    def __init__(self, owner: Owner, op: int) -> None:
        self.owner = owner
        self.op = op
        self.owners: list[Owner] = []
        self.ranges: list[bytes | memoryview] = []  # each some packed ranges
        self.outers: list[bytes | memoryview] = []  # the same
        self.n_outers = 0
        self._index: dict[int, int] = {}  # by id; `owners` keeps them alive

    def add(self, ranges: memoryview, outers: memoryview) -> None:
        """Packed ones, of which the outer dimensions count from `n_outers`."""
        self.ranges.append(ranges)
        if outers:
            self.outers.append(outers)
            self.n_outers += len(outers) // OUTER.size

    def remote_index(self, owner: Owner) -> int:
        """Where the handle's C half is in the batch."""
        index = self._index.get(id(owner))
        if index is None:
            index = self._index[id(owner)] = len(self.owners)
            self.owners.append(owner)
        return index

    def remotes(self) -> bytes:
        if self.keys():
            return self._placed()
        return b"".join([owner.native for owner in self.owners])

    def keys(self) -> bytes:
        """The key tables of the handles that have one."""
        return b"".join([owner.keys for owner in self.owners if owner.keys])

    def _placed(self) -> bytes:
        placed: list[bytes] = []
        at = 0
        for owner in self.owners:
            placed.append(owner.native_at(at) if owner.keys else owner.native)
            at += len(owner.keys) // KEY_BYTES
        return b"".join(placed)


class Batch:
    """Requests being gathered. `pins` is what must live until the transfer is quiet."""

    __slots__ = (
        "_at",
        "_joined",
        "_known",
        "_local",
        "_offset",
        "_op",
        "_owner",
        "_part",
        "_parts",
        "_ranges",
        "_region",
        "_register",
        "_register_gpu",
        "_registrar",
        "devices",
        "pins",
    )

    def __init__(
        self,
        registrar: Callable[[Owner], Register | None] | None = None,
        register_gpu: Register | None = None,
    ) -> None:
        self._registrar = registrar
        self._register: Register | None = None
        self._register_gpu = register_gpu  # of every link: no CPU may touch it
        self.devices: set[int] = set()  # GPUs that local memory is of
        self._parts: dict[tuple[bytes, int], Part] = {}
        self._owner: Owner | None = None
        self._op = self._at = 0
        self._ranges: list[bytes | memoryview] = []
        self._part: Any = None
        # The contiguous range that is being gathered: where it ends on both sides, its size.
        self._local = self._offset = self._joined = self._region = 0
        self._known = (0, 0, 0)  # local memory of which the region is known: start, end, region
        self.pins: list[Any] = []

    def add(self, local: Any, remote: Any, op: int) -> None:
        """Checks one request and adds its ranges. Raises InvalidUse or RemoteAccessError."""
        if type(remote) is not RemoteRegion or type(local) is Blocks:
            self._add_blocks(local, remote, op)
            return
        here = local.local_view() if isinstance(local, Region) else view(local)
        _check(here, remote, op)
        if remote._owner is not self._owner or op != self._op:
            self._turn_to(remote._owner, op)
        self.pins.append(here.owner)
        region = self._region_of(here) if self._register or here.device else 0
        if here.contiguous and remote._contiguous:
            self._add_bytes(here.address, region, remote._offset, here.nbytes)
        else:
            self._add_rows(here, region, remote)

    def add_request(self, request: Any) -> None:
        """Adds a Read or a Write."""
        if isinstance(request, Read):
            self.add(request.into, request.remote, READ)
        elif isinstance(request, Write):
            self.add(request.source, request.to, WRITE)
        elif isinstance(request, Copies):
            self._add_copies(request)
        else:
            raise InvalidUse(f"a request is a Read or a Write, not {request!r:.80}")

    def parts(self) -> list[Part]:
        self._flush()
        return list(self._parts.values())

    def _add_bytes(self, address: int, region: int, offset: int, nbytes: int) -> None:
        """A contiguous range, which may continue the one before it."""
        if not nbytes:
            return
        if address != self._local or offset != self._offset or region != self._region:
            self._flush()
            self._region = region
        self._local = address + nbytes
        self._offset = offset + nbytes
        self._joined += nbytes

    def _flush(self) -> None:
        """Packs the contiguous range that was gathered."""
        nbytes = self._joined
        if nbytes:
            local, offset = self._local - nbytes, self._offset - nbytes
            packed = _pack(local, self._region, offset, nbytes, 1, 0, 0, self._at, 0)
            self._ranges.append(packed)
        self._joined = 0

    def _add_rows(self, here: View, region: int, remote: RemoteRegion) -> None:
        address, offset, part = here.address, remote._offset, self._part
        for left, right, length, rows, left_stride, right_stride, outer in _rows(here, remote):
            if outer:
                unused = [0] * (3 * (MAX_OUTER - len(outer)))
                part.outers.append(OUTER.pack(len(outer), *chain(*outer), *unused))
                part.n_outers += 1
            self._ranges.append(
                _pack(
                    address + left,
                    region,
                    offset + right,
                    length,
                    rows,
                    left_stride,
                    right_stride,
                    self._at,
                    part.n_outers if outer else 0,
                )
            )

    def _add_blocks(self, local: Any, remote: Any, op: int) -> None:
        memory, target = memory_of(local), memory_of(remote)
        if type(target) is not RemoteRegion:
            raise not_remote(target)
        here = memory.local_view() if isinstance(memory, Region) else view(memory)
        _check_rights(here, target, op)
        if target._owner is not self._owner or op != self._op:
            self._turn_to(target._owner, op)
        self.pins.append(here.owner)
        region = self._region_of(here)
        written = "local" if op == READ else "remote"
        self._ranges.append(ranges_of(local, remote, here, region, self._at, written=written))

    def _add_copies(self, copies: Copies) -> None:
        from transport.engine.packing import Packed  # and numpy, for those who need it

        views = [it.local_view() if isinstance(it, Region) else view(it) for it in copies.local]
        packed = Packed(copies, views)
        for which in packed.by_peer():
            for k in packed.remotes_of(which):
                _check_remote_rights(copies.remote[k], copies.op)
                self._turn_to(copies.remote[k]._owner, copies.op)
                packed.at[k] = self._at
            for k in packed.locals_of(which):
                _check_local_rights(views[k], copies.op)
                packed.regions[k] = self._known_region(copies.local[k], views[k])
            self._part.add(*packed.structs(which, self._part.n_outers))
        self.pins.extend(here.owner for here in views)

    def _known_region(self, local: Any, here: View) -> int:
        """As C is told of it; a Region also where no register is needed: C refuses a closed one."""
        if isinstance(local, Region):
            if here.device is not None:
                self.devices.add(here.device.ordinal)
            self.pins += (local, local._native)
            return local._native.number
        register = self._register_of(here)
        return register(here, self.pins) if register and here.nbytes else 0

    def _register_of(self, here: View) -> Register | None:
        if here.device is None:
            return self._register
        self.devices.add(here.device.ordinal)
        if self._register_gpu is None:
            raise InvalidUse(f"this operation has no use for memory on {here.device}")
        return self._register_gpu

    def _region_of(self, here: View) -> int:
        """The number of the region that covers it. The memory round a view that this batch pins is
        that of its storage, so that a view inside it needs no look at its own.
        """
        register = self._register_of(here)
        if not here.nbytes or register is None:
            return 0
        start, end, region = self._known
        if here.contiguous:
            low, high = here.address, here.address + here.nbytes
        else:
            low, high = (
                here.address + far for far in span(here.shape, here.strides, here.itemsize)
            )
        if start <= low and high <= end:
            return region
        region = register(here, self.pins)
        found = self.pins[-1]
        self._known = found.start, found.end, region
        return region

    def _turn_to(self, owner: Owner, op: int) -> None:
        """What follows is for this handle, which is often so for many requests in a row."""
        self._flush()
        key = (owner.incarnation, op)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = Part(owner, op)
        self._owner, self._op = owner, op
        self._at = part.remote_index(owner)
        self._part, self._ranges = part, part.ranges
        self._register = self._registrar(owner) if self._registrar else None


def _check(here: View, remote: RemoteRegion, op: int) -> None:
    if here.dtype is not None and remote._dtype is not None:
        if here.dtype != remote._dtype or here.shape != remote._shape:
            raise InvalidUse(
                f"the local side is {here.dtype}{list(here.shape)}, the remote one"
                f" {remote._dtype}{list(remote._shape)}; they must be equal (remote.bytes() and an"
                " untyped buffer compare sizes only)"
            )
    elif here.nbytes != remote._nbytes:
        raise InvalidUse(f"{here.nbytes} local bytes for {remote._nbytes} remote bytes")
    _check_rights(here, remote, op)
    if op == READ:
        overlap = not here.contiguous and overlaps_itself(here.shape, here.strides, here.itemsize)
    else:
        overlap = not remote._contiguous and overlaps_itself(
            remote._shape, remote._strides, remote.itemsize
        )
    if overlap:
        raise InvalidUse("elements of the destination share bytes (an expanded tensor?)")


def _check_rights(here: View, remote: RemoteRegion, op: int) -> None:
    _check_remote_rights(remote, op)
    _check_local_rights(here, op)


def _check_remote_rights(remote: RemoteRegion, op: int) -> None:
    if not remote._owner.rights & op:
        raise RemoteAccessError(
            f"the remote region allows to {remote.access} only",
            op=OP_NAMES[op],
            status=Status.REMOTE_ACCESS,
        )


def _check_local_rights(here: View, op: int) -> None:
    if op == READ and here.readonly:
        raise InvalidUse("the local memory is read-only; it cannot take what is read")


def _rows(here: View, remote: RemoteRegion) -> Iterable[Rows]:
    """Left is the local side. An untyped side is flat bytes in the other's C order."""
    same = here.itemsize == remote.itemsize and here.shape == remote._shape
    if same:
        return pair_rows(here.shape, here.strides, remote._strides, here.itemsize)
    if remote._contiguous:
        return bytes_rows(here.shape, here.strides, here.itemsize)
    if here.contiguous:
        flipped = bytes_rows(remote._shape, remote._strides, remote.itemsize)
        return (row.flipped() for row in flipped)
    raise InvalidUse("of an untyped pair one side must be contiguous")


def not_remote(remote: object) -> InvalidUse:
    """What to raise for it."""
    hint = "; call .remote() on the region" if isinstance(remote, Region) else ""
    return InvalidUse(f"the remote side must be a RemoteRegion, not {type(remote).__name__}{hint}")
