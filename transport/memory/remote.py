"""A right to somebody's memory, as plain data that travels: by pickle, JSON or bytes.

May import types and errors. Touches no memory and no native code: the C half of a handle is packed
bytes here (`struct tn_remote`), so that building a batch copies it without looking inside.
"""

from __future__ import annotations

import operator
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from transport.errors import InvalidUse, OutOfRange
from transport.memory.dtypes import ITEMSIZES
from transport.memory.layout import contiguous_strides, count, is_contiguous, span
from transport.types import INCARNATION_BYTES, UNDECODABLE, Access, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import EllipsisType

    Index = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]

# struct tn_remote: number, generation, key, address, length, segment_offset, segment, access,
# rkeys, key_span, key_skew, keys_at, memory
NATIVE = struct.Struct("<QQ16sQQQII8IQQII")
_PLACE = struct.Struct("<II")  # the last two

_VERSION = 3
_MAX_KEYS = 8192  # TN_MAX_KEYS
_MIN_SPAN = 4096
_MAX_RANK = 64
_MAX_ADDRESSES = 64
_MAX_ADDRESS = 512  # characters
_MAX_ENCODED = 1 << 16


class Owner(NamedTuple):
    """Whose memory it is and the C half of the handle; shared by all slices of one handle."""

    incarnation: bytes
    addresses: tuple[str, ...]
    native: bytes  # a packed struct tn_remote
    access: Access
    length: int  # of the whole region
    rights: int  # access as bits, for the hot path
    keys: bytes = b""  # RDMA's key table, where the region has one (struct tn_remote)

    @classmethod
    def make(
        cls, incarnation: bytes, addresses: Sequence[str], native: bytes, keys: bytes = b""
    ) -> Owner:
        """Checks what may come from outside. Raises InvalidUse."""
        _require(len(incarnation) == INCARNATION_BYTES, "its incarnation is not 16 bytes")
        _require(len(native) == NATIVE.size, "its native part has the wrong size")
        _require(len(addresses) <= _MAX_ADDRESSES, "it has too many addresses")
        _require(all(len(a) <= _MAX_ADDRESS for a in addresses), "an address is too long")
        fields = NATIVE.unpack(native)
        address, length, access = fields[3], fields[4], fields[7]
        _require(address + length <= 1 << 64, "it ends beyond the address space")
        _require(access in (1, 2, 3), "its access mode is unknown")
        _check_keys(length, fields[8:-4], fields[-4:], len(keys))
        rights = Access(access)
        names = tuple(addresses)
        return cls(bytes(incarnation), names, bytes(native), rights, length, access, bytes(keys))

    def native_at(self, keys_at: int) -> bytes:
        """The C half, for a batch whose tables hold this handle's keys from `keys_at` on."""
        memory = _PLACE.unpack_from(self.native, NATIVE.size - _PLACE.size)[1]
        return self.native[: -_PLACE.size] + _PLACE.pack(keys_at, memory)


def _check_keys(
    length: int, rkeys: Sequence[int], tail: tuple[int, int, int, int], nbytes: int
) -> None:
    """The key table must have a row for each rail, and each row a key for each span."""
    span, skew, keys_at, memory = tail
    _require(keys_at == 0 and memory in (0, 1, 2), "its native part is not one that travels")
    if not span:
        _require(nbytes == 0 and skew == 0, "it has keys that it does not need")
        return
    _require(skew < span, "the first span of its keys is none")
    _require(span >= _MIN_SPAN, "the spans of its keys are too small")
    rails = sum(1 for key in rkeys if key)
    wanted = rails * -(-(skew + length) // span)
    _require(0 < wanted <= _MAX_KEYS and nbytes == 4 * wanted, "its key table is not of its size")


class _Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What travels. JSON writes the same as an object, with hexadecimal text for bytes."""

    version: int
    incarnation: bytes
    addresses: list[str]
    native: bytes
    offset: int
    dtype: str | None
    shape: list[int]
    strides: list[int] | None  # None: contiguous
    keys: bytes = b""


class _Json(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    incarnation: str
    addresses: list[str]
    native: str
    offset: int
    dtype: str | None
    shape: list[int]
    strides: list[int] | None
    keys: str = ""


class _Versioned(msgspec.Struct, array_like=True):
    """As much of `_Wire` as all versions have."""

    version: int


def _require(fact: bool, otherwise: str) -> None:
    if not fact:
        raise InvalidUse(f"this is not a usable remote region: {otherwise}")


class RemoteRegion:
    """A right to read or write a part of somebody's memory. Immutable; compares by value.

    `remote[i:j]` is a part of the leading dimension (of the bytes when it has no dtype), and any
    other basic index works as on an array. `remote.bytes(i, j)` is an untyped part. The right that
    a part carries is the whole region's: a slice says what to use, it does not restrict its holder.
    """

    __slots__ = ("_contiguous", "_dtype", "_nbytes", "_offset", "_owner", "_shape", "_strides")

    _owner: Owner
    _offset: int
    _nbytes: int
    _dtype: str | None
    _shape: tuple[int, ...]
    _strides: tuple[int, ...]  # bytes
    _contiguous: bool

    def __init__(
        self,
        owner: Owner,
        offset: int,
        dtype: str | None,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> None:
        """Checks everything, since handles arrive from outside. Raises InvalidUse."""
        _require(dtype is None or dtype in ITEMSIZES, f"the dtype {dtype!r} is unknown")
        itemsize = ITEMSIZES[dtype] if dtype else 1
        _require(len(shape) <= _MAX_RANK, "it has too many dimensions")
        _require(all(0 <= size < 1 << 63 for size in shape), "its shape is impossible")
        steps = contiguous_strides(shape, itemsize) if strides is None else tuple(strides)
        _require(len(steps) == len(shape), "shape and strides disagree")
        low, high = span(shape, steps, itemsize)
        fits = offset + low >= 0 and offset + high <= owner.length
        _require(fits, f"bytes {offset + low} to {offset + high} of {owner.length} are outside")
        nbytes = count(shape) * itemsize
        contiguous = is_contiguous(shape, steps, itemsize)
        _fill(self, owner, offset, nbytes, dtype, tuple(shape), steps, contiguous)

    # ------------------------------------------------------------------------------------ facts
    @property
    def incarnation(self) -> bytes:
        """The engine that owns the memory, in one of its lives (16 bytes)."""
        return self._owner.incarnation

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the owner listens, as `Engine.connect` takes them."""
        return self._owner.addresses

    @property
    def access(self) -> Access:
        return self._owner.access

    @property
    def nbytes(self) -> int:
        """Size of the elements, without gaps between them."""
        return self._nbytes

    @property
    def offset(self) -> int:
        """Byte of the region at which the first element lies."""
        return self._offset

    @property
    def dtype(self) -> str | None:
        """ "float32", "bfloat16" and so on; None for plain bytes."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, per dimension."""
        return self._strides

    @property
    def itemsize(self) -> int:
        return ITEMSIZES[self._dtype] if self._dtype else 1

    @property
    def contiguous(self) -> bool:
        return self._contiguous

    def __len__(self) -> int:
        if not self._shape:
            raise InvalidUse("a remote region without dimensions has no length; use .nbytes")
        return self._shape[0]

    # ------------------------------------------------------------------------------------ parts
    def bytes(self, start: int = 0, stop: int | None = None) -> RemoteRegion:
        """An untyped part: bytes `start` up to `stop` (default: the end) of the elements."""
        if not self._contiguous:
            raise InvalidUse("only a contiguous remote region has a range of bytes; index it first")
        stop = self._nbytes if stop is None else stop
        if type(start) is not int or type(stop) is not int:
            start, stop = _whole(start), _whole(stop)
        if not 0 <= start <= stop <= self._nbytes:
            raise OutOfRange(f"bytes {start} to {stop} are outside 0 to {self._nbytes}")
        size = stop - start
        part = _new(RemoteRegion)
        _fill(part, self._owner, self._offset + start, size, None, (size,), (1,), True)
        return part

    def __getitem__(self, index: Index) -> RemoteRegion:
        """A part, by the rules of basic indexing; but a bound outside raises InvalidUse."""
        if type(index) is slice and index.step is None and self._contiguous and self._shape:
            return self._rows(index)
        offset, shape, strides = _index(self._shape, self._strides, index)
        itemsize = self.itemsize
        part = _new(RemoteRegion)
        _fill(
            part,
            self._owner,
            self._offset + offset,
            count(shape) * itemsize,
            self._dtype,
            shape,
            strides,
            is_contiguous(shape, strides, itemsize),
        )
        return part

    def _rows(self, index: slice) -> RemoteRegion:
        """The usual part, quickly: batches have a hundred thousand of them."""
        shape = self._shape
        size = shape[0]
        start, length, _ = _slice(size, index)
        row = self._nbytes // size if size else 0
        part = _new(RemoteRegion)
        part._owner = self._owner
        part._offset = self._offset + start * row
        part._nbytes = length * row
        part._dtype = self._dtype
        part._shape = (length, *shape[1:])
        part._strides = self._strides
        part._contiguous = True
        return part

    # ---------------------------------------------------------------------------------- travels
    def to_bytes(self) -> bytes_:
        """The handle as msgpack, with a version. The key inside is a secret of the job."""
        owner = self._owner
        strides = None if self._contiguous else list(self._strides)
        wire = _Wire(
            _VERSION,
            owner.incarnation,
            list(owner.addresses),
            owner.native,
            self._offset,
            self._dtype,
            list(self._shape),
            strides,
            owner.keys,
        )
        return msgspec.msgpack.encode(wire)

    @classmethod
    def from_bytes(cls, data: bytes_ | bytearray | memoryview) -> RemoteRegion:
        """Reads `to_bytes`. Raises InvalidUse for anything else."""
        _require(len(data) <= _MAX_ENCODED, "it is too long")
        try:
            version = msgspec.msgpack.decode(data, type=_Versioned).version
            _require(version == _VERSION, f"its version {version} is not {_VERSION}")
            wire = msgspec.msgpack.decode(data, type=_Wire)
        except UNDECODABLE as error:
            raise InvalidUse(f"this is not a remote region: {error}") from None
        owner = Owner.make(wire.incarnation, wire.addresses, wire.native, wire.keys)
        return cls(owner, wire.offset, wire.dtype, wire.shape, wire.strides)

    def to_json(self) -> str:
        """The handle as a JSON object. The key inside is a secret of the job."""
        owner = self._owner
        value = _Json(
            _VERSION,
            owner.incarnation.hex(),
            list(owner.addresses),
            owner.native.hex(),
            self._offset,
            self._dtype,
            list(self._shape),
            None if self._contiguous else list(self._strides),
            owner.keys.hex(),
        )
        return msgspec.json.encode(value).decode()

    @classmethod
    def from_json(cls, text: str | bytes_) -> RemoteRegion:
        """Reads `to_json`. Raises InvalidUse for anything else."""
        _require(len(text) <= 2 * _MAX_ENCODED, "it is too long")
        try:
            value = msgspec.json.decode(text, type=_Json)
            texts = value.incarnation, value.native, value.keys
            incarnation, native, keys = map(bytes_.fromhex, texts)
        except (*UNDECODABLE, ValueError) as error:
            raise InvalidUse(f"this is not a remote region: {error}") from None
        _require(value.version == _VERSION, f"its version {value.version} is not {_VERSION}")
        owner = Owner.make(incarnation, value.addresses, native, keys)
        return cls(owner, value.offset, value.dtype, value.shape, value.strides)

    def __reduce__(self) -> tuple[Any, ...]:
        # The owner is an object of its own here, so that a list of a thousand slices holds it once.
        strides = None if self._contiguous else self._strides
        return _unpickle, (self._owner, self._offset, self._dtype, self._shape, strides)

    # ------------------------------------------------------------------------------------ value
    def _value(self) -> tuple[Any, ...]:
        strides = None if self._contiguous else self._strides
        owner = self._owner
        return (
            owner.incarnation,
            owner.native,
            owner.keys,
            self._offset,
            self._dtype,
            self._shape,
            strides,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemoteRegion):
            return NotImplemented
        return self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    def __repr__(self) -> str:
        what = f"{self._dtype}{list(self._shape)}" if self._dtype else "bytes"
        size = format_bytes(self._nbytes)
        return f"<RemoteRegion {what} {size} {self.access} of {self.incarnation.hex()[:8]}>"


bytes_ = bytes  # the method named bytes hides the type inside the class
_new = RemoteRegion.__new__


def _unpickle(
    owner: Owner,
    offset: int,
    dtype: str | None,
    shape: Sequence[int],
    strides: Sequence[int] | None,
) -> RemoteRegion:
    checked = Owner.make(owner.incarnation, owner.addresses, owner.native, owner.keys)
    # The very object is kept when it is sound: slices that share it stay cheap to batch.
    return RemoteRegion(owner if checked == owner else checked, offset, dtype, shape, strides)


def _fill(
    part: RemoteRegion,
    owner: Owner,
    offset: int,
    nbytes: int,
    dtype: str | None,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    contiguous: bool,
) -> None:
    part._owner = owner
    part._offset = offset
    part._nbytes = nbytes
    part._dtype = dtype
    part._shape = shape
    part._strides = strides
    part._contiguous = contiguous


def _index(
    shape: tuple[int, ...], strides: tuple[int, ...], index: Index
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Offset in bytes, shape and strides of the part that a basic index names."""
    offset = 0
    new_shape: list[int] = []
    new_strides: list[int] = []
    for size, stride, item in zip(shape, strides, _complete(index, len(shape))):
        if isinstance(item, slice):
            start, length, step = _slice(size, item)
            offset += start * stride if length else 0
            new_shape.append(length)
            new_strides.append(stride * step)
        else:
            offset += _position(size, item) * stride
    return offset, tuple(new_shape), tuple(new_strides)


def _complete(index: Index, rank: int) -> list[int | slice]:
    """One index per dimension: the ellipsis, or the end, stands for whole dimensions."""
    items = list(index) if isinstance(index, tuple) else [index]
    gaps = [i for i, item in enumerate(items) if item is ...]
    if len(gaps) > 1:
        raise InvalidUse("an index can have one ellipsis")
    given = [item for item in items if item is not ...]
    if len(given) > rank:
        raise OutOfRange(f"{len(given)} indices for {rank} dimensions")
    at = gaps[0] if gaps else len(given)
    whole = [slice(None)] * (rank - len(given))
    return [*given[:at], *whole, *given[at:]]


def _slice(size: int, part: slice) -> tuple[int, int, int]:
    """Start, length and step of a slice of a dimension, with every bound inside it."""
    first, last = part.start, part.stop
    if (
        part.step is None
        and type(first) is int
        and type(last) is int
        and 0 <= first <= last <= size
    ):
        return first, last - first, 1
    for bound in (first, last):
        if bound is not None and not -size <= _whole(bound) <= size:
            raise OutOfRange(f"{bound} is outside a dimension of length {size}")
    if part.step == 0:
        raise InvalidUse("a slice cannot have a step of 0")
    start, stop, step = part.indices(size)
    return start, len(range(start, stop, step)), step


def _whole(item: Any) -> int:
    try:
        return operator.index(item)
    except TypeError:
        raise InvalidUse(f"{item!r:.80} is no index; integers, slices and ... are") from None


def _position(size: int, item: int) -> int:
    position = _whole(item)
    if not -size <= position < size:
        raise OutOfRange(f"index {position} is outside a dimension of length {size}")
    return position % size
