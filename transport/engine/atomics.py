"""Atomic operations on a word of 8 bytes in a peer's memory.

May import transfer, submit, batch, memory, ffi and errors. The NIC carries them out (InfiniBand
Architecture Specification, volume 1, 9.4.5).
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from transport.engine.batch import COMPARE_SWAP, FETCH_ADD, RANGE, Part, not_remote
from transport.engine.submit import How, allowed, call_with_batch, deadline_ns, flight_of
from transport.engine.transfer import Transfer
from transport.errors import InvalidUse, RemoteAccessError, Status
from transport.ffi import lib
from transport.memory.remote import RemoteRegion
from transport.types import Access

if TYPE_CHECKING:
    from transport.engine.core import Core, Flight
    from transport.engine.submit import Options
    from transport.memory.words import Word

_WORD = 8  # bytes
_DTYPES = ("int64", "uint64", None)
_OPS = {FETCH_ADD: "fetch_add", COMPARE_SWAP: "compare_swap"}


class AtomicTransfer(Transfer):
    """An atomic operation in flight. Made by `Engine.fetch_add` and `Engine.compare_swap`."""

    __slots__ = ("_signed", "_word")

    def __init__(
        self, parent: object, core: Core, flights: list[Flight], word: Word, signed: bool
    ) -> None:
        self._word = word
        self._signed = signed
        super().__init__(parent, core, flights, [word])

    @property
    def value(self) -> int:
        """The word as it was before. Raises what `wait` raises, InvalidUse before the end."""
        if not self.done:
            raise InvalidUse("the atomic operation has not ended; wait for it")
        self._result()
        return self._word.read(signed=self._signed)


def fetch_add(
    parent: object, core: Core, remote: RemoteRegion, value: int, options: Options
) -> AtomicTransfer:
    """Within the engine's gate."""
    return _submit(parent, core, remote, FETCH_ADD, (_unsigned(value), 0), options)


def compare_swap(
    parent: object, core: Core, remote: RemoteRegion, words: tuple[int, int], options: Options
) -> AtomicTransfer:
    """`words` are what is expected and what is desired. Within the engine's gate."""
    expected, desired = map(_unsigned, words)
    return _submit(parent, core, remote, COMPARE_SWAP, (desired, expected), options)


def _submit(
    parent: object,
    core: Core,
    remote: RemoteRegion,
    op: int,
    words: tuple[int, int],
    options: Options,
) -> AtomicTransfer:
    _check(remote, op)
    deadline = deadline_ns(core, options.deadline)
    owner, word = remote._owner, core.words.take()
    part = Part(owner, op)
    part.ranges.append(
        RANGE.pack(
            word.address,
            word.region,
            remote._offset,
            _WORD,
            1,
            0,
            0,
            part.remote_index(owner),
            0,
        )
    )
    record = core.plane.peer(owner.incarnation, owner.addresses)
    flight = flight_of(part, record)
    flights = [flight]
    transfer = AtomicTransfer(parent, core, flights, word, remote._dtype == "int64")
    try:
        mask = allowed(core, record, options)
        call_with_batch(lib.tn_submit, flight, part, How(mask, deadline, words=words))
    except BaseException:
        flights[:] = [flight for flight in flights if flight.begun()]
        transfer.cancel()
        raise
    return transfer


def _check(remote: Any, op: int) -> None:
    if type(remote) is not RemoteRegion:
        raise not_remote(remote)
    if remote._nbytes != _WORD or remote._dtype not in _DTYPES:
        raise InvalidUse(
            "an atomic operation is on one int64 or uint64 (a slice of one element, or 8 bytes),"
            f" not on {remote!r}"
        )
    if remote._owner.rights != Access.READ_WRITE.value:
        raise RemoteAccessError(
            f"an atomic operation reads and writes; the remote region allows to {remote.access}"
            " only",
            op=_OPS[op],
            status=Status.REMOTE_ACCESS,
        )


def _unsigned(value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidUse(f"an operand is an integer, not {value!r}") from None
    if not -(1 << 63) <= number < 1 << 64:
        raise InvalidUse(f"{number} does not fit into 64 bits")
    return number & ((1 << 64) - 1)
