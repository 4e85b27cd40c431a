"""Every exception that this library raises. Imports the standard library only.

TransportError                  .retryable
  Unavailable                   no library, device, permission or path; .reason .remedy
  InvalidUse (ValueError)       the caller's mistake
    OutOfRange (IndexError)     a slice, an index or a block outside what it is of
  PeerError                     .peer
    PeerLost (TransferError)    it died, vanished or stopped answering
      RankLost                  .ranks; a member of a communicator did
    PeerRefused                 it does not want us: wrong secret, wrong uid, closing
    VersionMismatch             it speaks another protocol or another version of ours
  TransferError                 .transfer .op .status
    RemoteAccessError           outside the remote region, or not allowed by its access mode
    DeadlineExceeded (TimeoutError)
    Cancelled
    StaleRegion                 the region was closed or dropped, or its owner restarted
  NativeError (OSError)         .operation .errno
    VerbsError  NcclError
    DriverError                 .number .name; a GPU driver's
      CudaError  HipError
  LayoutError                   a sharding that cannot be
  VersionMoved                  .version; weights changed while they were read
    VersionGone                 that version is not kept any more
  ActorError                    .rank .host .traceback; an endpoint raised
    ActorCrashed                .rank .host .cause .logs; a process ended, hangs or is unreachable
"""

from __future__ import annotations

import copy
import enum
import errno as _errno
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Status(enum.IntEnum):
    """What C functions return: ``enum tn_status``."""

    PENDING = 1
    OK = 0
    AGAIN = -1
    INVALID = -2
    UNAVAILABLE = -3
    NOMEM = -4
    SYSTEM = -5
    PEER_LOST = -6
    PEER_REFUSED = -7
    VERSION = -8
    REMOTE_ACCESS = -9
    STALE = -10
    DEADLINE = -11
    CANCELLED = -12
    PROTOCOL = -13
    CLOSED = -14
    VERBS = -15
    NO_PATH = -16
    FLUSHED = -17
    CUDA = -18
    HIP = -19
    NCCL = -20


class TransportError(Exception):
    """The root of the tree."""

    _retryable = False

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later, with nothing else changed."""
        return self._retryable

    def again(self) -> Self:
        """The same error as another object, without its traceback and live objects: for one that is
        kept and may be raised more than once. A traceback holds the frames of whoever was told, and
        those who keeps the error: what else they have would wait for the garbage collector."""
        made = copy.copy(self)
        made.__cause__ = self.__cause__
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: _plain(value) for name, value in self.__dict__.items()}
        return _rebuild, (type(self), self.args, state)


def _plain(value: Any) -> Any:
    """A live object (a Transfer, a Peer) does not travel with a pickled error; its name does."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value if isinstance(value, (str, bytes, int, float, type(None))) else repr(value)


def _rebuild(
    cls: type[TransportError], args: tuple[Any, ...], state: dict[str, Any]
) -> TransportError:
    error = cls.__new__(cls, *args)
    # OSError parses its arguments in the initialiser; the others keep them from __new__.
    if isinstance(error, OSError):
        OSError.__init__(error, *args)
    error.__dict__.update(state)
    return error


class Unavailable(TransportError):
    """Something that this machine or this peer does not have. `remedy` says what would help."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason = reason
        self.remedy = remedy


class InvalidUse(TransportError, ValueError):
    """The caller's mistake; the message says what to do instead."""


class OutOfRange(InvalidUse, IndexError):
    """A slice, an index or a block that is not all within what it is of: nothing is clamped."""


class PeerError(TransportError):
    """Something is wrong with or at a peer. `peer` is its name or address."""

    def __init__(self, message: str = "", *, peer: object = None) -> None:
        super().__init__(message)
        self.peer = peer


class TransferError(TransportError):
    """A transfer failed. `op` is "read" or "write", `status` the number of a Status."""

    def __init__(
        self,
        message: str = "",
        *,
        transfer: object = None,
        op: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.transfer = transfer
        self.op = op
        self.status = status

    @property
    def retryable(self) -> bool:
        return self._retryable or self.status == Status.AGAIN


class PeerLost(PeerError, TransferError):
    """The peer died, vanished, stopped answering or broke the protocol."""

    _retryable = True

    def __init__(
        self,
        message: str = "",
        *,
        peer: object = None,
        transfer: object = None,
        op: str | None = None,
        status: int | None = Status.PEER_LOST,
    ) -> None:
        TransferError.__init__(self, message, transfer=transfer, op=op, status=status)
        self.peer = peer


class RankLost(PeerLost):
    """Members of a communicator are lost: `ranks`. `shrink()` makes one of those who are left."""

    def __init__(
        self,
        message: str = "",
        *,
        ranks: tuple[int, ...] = (),
        peer: object = None,
        op: str | None = None,
    ) -> None:
        super().__init__(message, peer=peer, op=op)
        self.ranks = ranks


class PeerRefused(PeerError):
    """The peer answered and does not want us: wrong secret, wrong uid, or it is closing."""


class VersionMismatch(PeerError):
    """The other end speaks another protocol, or a version of ours that this one does not."""


class RemoteAccessError(TransferError):
    """Outside the remote region, or not allowed by its access mode or key."""


class DeadlineExceeded(TransferError, TimeoutError):
    """The operation's deadline passed. Its late bytes may still land until it is quiet."""

    _retryable = True


class Cancelled(TransferError):
    """The transfer was cancelled on this side."""


class StaleRegion(TransferError):
    """The remote region was closed, or its owner restarted: ask the owner for a new handle."""


class NativeError(TransportError, OSError):
    """A system or vendor library call failed. `operation` names it; `errno` is None if unknown."""

    def __init__(self, message: str = "", *, operation: str = "", errno: int = 0) -> None:
        # Plain OSError sets .errno and .strerror only when it is given two arguments.
        OSError.__init__(self, *((errno, message) if errno else (message,)))
        self.operation = operation

    def __str__(self) -> str:
        text = str(self.args[-1]) if self.args else ""
        return f"{self.operation}: {text}" if self.operation else text


class VerbsError(NativeError):
    """libibverbs, or a failed work completion."""


class DriverError(NativeError):
    """A GPU driver; `errno` is its own error number, not one of the system's."""

    @property
    def number(self) -> int:
        """CUresult or hipError_t."""
        return self.errno or 0

    @property
    def name(self) -> str:
        """As the driver spells it ("CUDA_ERROR_INVALID_VALUE"); "" where it gave none."""
        found = re.search(r"\b(?:CUDA_ERROR_|hipError)\w+", str(self))
        return found[0] if found else ""


class CudaError(DriverError):
    """The CUDA driver."""


class HipError(DriverError):
    """The HIP runtime."""


class NcclError(NativeError):
    """NCCL or RCCL; `errno` is its own ncclResult_t, not one of the system's."""


class LayoutError(TransportError):
    """A sharding that cannot be: shapes, meshes or placements that do not fit each other."""


class VersionMoved(TransportError):
    """A publisher went on to another version of the weights while this one was being read."""

    _retryable = True

    def __init__(self, message: str = "", *, version: int | None = None) -> None:
        super().__init__(message)
        self.version = version


class VersionGone(VersionMoved):
    """No publisher has this version any more, or will have it again: fetch a later one."""

    _retryable = False


class ActorError(TransportError):
    """An actor's endpoint raised. `traceback` is the text of the remote one.

    `__cause__` is the exception that was raised, where it could be pickled; what is printed of it
    has the remote traceback. `rank` is that of the process in its mesh.
    """

    def __init__(
        self, message: str = "", *, rank: int | None = None, host: str = "", traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.traceback = traceback

    def __str__(self) -> str:
        text = super().__str__()
        if not self.traceback or self.__cause__ is not None:  # which is printed with it
            return text
        return f"{text}\n\n{self.traceback.rstrip()}"


class ActorCrashed(ActorError):
    """The process of an actor ended, hangs past a deadline, or cannot be reached.

    `cause` says which ("killed by SIGKILL"); `logs` are the last lines that it wrote, if known.
    """

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        host: str = "",
        cause: str = "",
        logs: tuple[str, ...] = (),
        traceback: str = "",
    ) -> None:
        super().__init__(message, rank=rank, host=host, traceback=traceback)
        self.cause = cause
        self.logs = logs

    def __str__(self) -> str:
        text = super().__str__()
        lines = "\n".join(f"  {line}" for line in self.logs)
        return f"{text}\nits last lines:\n{lines}" if lines else text


_TRANSFER_ERRORS: dict[int, type[TransferError]] = {
    Status.REMOTE_ACCESS: RemoteAccessError,
    Status.STALE: StaleRegion,
    Status.DEADLINE: DeadlineExceeded,
    Status.CANCELLED: Cancelled,
}

_NATIVE_ERRORS: dict[int, type[NativeError]] = {
    Status.SYSTEM: NativeError,
    Status.VERBS: VerbsError,
    Status.CUDA: CudaError,
    Status.HIP: HipError,
    Status.NCCL: NcclError,
}

_PEER_ERRORS: dict[int, type[PeerError]] = {
    Status.PEER_REFUSED: PeerRefused,
    Status.VERSION: VersionMismatch,
}


def status_name(status: int) -> str:
    """ "PEER_LOST" for -6; the number where the table has none."""
    return Status(status).name if status in _STATUS_NUMBERS else str(status)


_STATUS_NUMBERS = frozenset(int(status) for status in Status)


def from_status(
    status: int,
    text: str,
    *,
    peer: object = None,
    op: str | None = None,
    transfer: object = None,
    error: int = 0,
) -> TransportError:
    """The exception for a negative C status; `text` is C's words, `error` its errno."""
    text = text or status_name(status)
    if status == Status.INVALID:
        return InvalidUse(text)
    if status in (Status.UNAVAILABLE, Status.NO_PATH):
        return Unavailable(text)
    if status == Status.NOMEM:
        return NativeError(text, errno=error or _errno.ENOMEM)
    if status in _NATIVE_ERRORS:
        return _NATIVE_ERRORS[status](text, errno=error)
    if status in _PEER_ERRORS:
        return _PEER_ERRORS[status](text, peer=peer)
    if status in (Status.PEER_LOST, Status.PROTOCOL):
        return PeerLost(text, peer=peer, transfer=transfer, op=op, status=status)
    kind = _TRANSFER_ERRORS.get(status, TransferError)
    return kind(text, transfer=transfer, op=op, status=status)
