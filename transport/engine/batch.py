"""From requests to the plain structs that C takes: checks, grouping by peer, strided pairs to rows.

May import memory, ffi, types and errors. Ranges are packed with struct, not through cffi, so that a
batch of 100,000 requests stays cheap; one C call takes all requests of one peer and kind.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, RemoteAccessError, Status
from transport.memory.host import View, view
from transport.memory.layout import bytes_rows, overlaps_itself, pair_rows
from transport.memory.region import Region
from transport.memory.remote import RemoteRegion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transport.memory.layout import Rows
    from transport.memory.remote import Owner

    # Finds the region of a local view, as the number in a range; may add to the pins.
    Register = Callable[[View, list[Any]], int]

READ, WRITE = 1, 2  # enum tn_op; the same bits as enum tn_access
FETCH_ADD, COMPARE_SWAP = 3, 4  # enum tn_op
OP_NAMES = {READ: "read", WRITE: "write", FETCH_ADD: "fetch_add", COMPARE_SWAP: "compare_swap"}

# struct tn_range: local_address, local_region, remote_offset, length, rows, local_stride,
# remote_stride, remote, reserved.
RANGE = struct.Struct("<QQQQQqqII")
_pack = RANGE.pack
KEY_BYTES = 4


@dataclass(frozen=True, slots=True)
class Read:
    """Bring what `remote` names into `into` (a tensor, array, buffer or Region)."""

    remote: RemoteRegion
    into: Any


@dataclass(frozen=True, slots=True)
class Write:
    """Bring the local memory `source` to where `to` names."""

    source: Any
    to: RemoteRegion


class Part:
    """All requests of one kind to one engine: what one native call submits."""

    __slots__ = ("_index", "op", "owner", "owners", "ranges")

    def __init__(self, owner: Owner, op: int) -> None:
        self.owner = owner
        self.op = op
        self.owners: list[Owner] = []
        self.ranges: list[bytes] = []
        self._index: dict[int, int] = {}  # by id; `owners` keeps them alive

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

    __slots__ = ("_at", "_op", "_owner", "_parts", "_ranges", "_register", "_registrar", "pins")

    def __init__(self, registrar: Callable[[Owner], Register | None] | None = None) -> None:
        self._registrar = registrar
        self._register: Register | None = None
        self._parts: dict[tuple[bytes, int], Part] = {}
        self._owner: Owner | None = None
        self._op = self._at = 0
        self._ranges: list[bytes] = []
        self.pins: list[Any] = []

    def add(self, local: Any, remote: Any, op: int) -> None:
        """Checks one request and adds its ranges. Raises InvalidUse or RemoteAccessError."""
        if type(remote) is not RemoteRegion:
            raise not_remote(remote)
        here = local.local_view() if isinstance(local, Region) else view(local)
        _check(here, remote, op)
        owner, pins = remote._owner, self.pins
        if owner is not self._owner or op != self._op:
            self._turn_to(owner, op)
        pins.append(here.owner)
        region = self._register(here, pins) if self._register and here.nbytes else 0
        if here.contiguous and remote._contiguous:
            packed = _pack(here.address, region, remote._offset, here.nbytes, 1, 0, 0, self._at, 0)
            self._ranges.append(packed)
        else:
            self._ranges += _strided(here, region, remote, self._at)

    def add_request(self, request: Any) -> None:
        """Adds a Read or a Write."""
        if isinstance(request, Read):
            self.add(request.into, request.remote, READ)
        elif isinstance(request, Write):
            self.add(request.source, request.to, WRITE)
        else:
            raise InvalidUse(f"a request is a Read or a Write, not {request!r:.80}")

    def parts(self) -> list[Part]:
        return list(self._parts.values())

    def _turn_to(self, owner: Owner, op: int) -> None:
        """What follows is for this handle, which is often so for many requests in a row."""
        key = (owner.incarnation, op)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = Part(owner, op)
        self._owner, self._op = owner, op
        self._at, self._ranges = part.remote_index(owner), part.ranges
        self._register = self._registrar(owner) if self._registrar else None


def _strided(here: View, region: int, remote: RemoteRegion, at: int) -> list[bytes]:
    address, offset = here.address, remote._offset
    return [
        _pack(
            address + row.left,
            region,
            offset + row.right,
            row.length,
            row.rows,
            row.left_stride,
            row.right_stride,
            at,
            0,
        )
        for row in _rows(here, remote)
    ]


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
    if not remote._owner.rights & op:
        raise RemoteAccessError(
            f"the remote region allows to {remote.access} only",
            op=OP_NAMES[op],
            status=Status.REMOTE_ACCESS,
        )
    if op == READ:
        if here.readonly:
            raise InvalidUse("the local memory is read-only; it cannot take what is read")
        overlap = not here.contiguous and overlaps_itself(here.shape, here.strides, here.itemsize)
    else:
        overlap = not remote._contiguous and overlaps_itself(
            remote._shape, remote._strides, remote.itemsize
        )
    if overlap:
        raise InvalidUse("elements of the destination share bytes (an expanded tensor?)")


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
