"""Exceptions on their way between processes. May import payload's pickle only; no I/O."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import threading
import traceback
from typing import TYPE_CHECKING, Annotated

import cloudpickle
import msgspec
from msgspec import Meta, Struct

from transport.errors import ActorError
from transport.types import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST = 1 << 16  # characters of a text that are kept
_MOST_PICKLED = 64 << 20  # bytes; a larger exception is its text


class _Raised(Struct, frozen=True, array_like=True):
    kind: Annotated[str, Meta(max_length=512)]
    text: Annotated[str, Meta(max_length=_MOST)]
    traceback: Annotated[str, Meta(max_length=_MOST)]
    pickled: bytes
    own: bool  # ours: the call never got to the endpoint


def pack(error: BaseException, *, skip: int = 0, own: bool = False) -> bytes:
    """The exception, as far as it can travel. `skip`: our own frames at the traceback's top.

    `own`: it is what the caller is to get, and not what an endpoint raised. Never raises: somebody
    waits for this, whatever the exception does when it is looked at.
    """
    kind = _text(lambda: type(error).__name__)[:512]
    text = _text(lambda: _trace(error, skip))
    text = text if len(text) <= _MOST else "...\n" + text[-(_MOST - 4) :]
    raised = _Raised(kind, words(error), text, b"", False)
    with contextlib.suppress(BaseException):
        pickled = cloudpickle.dumps(_Bare(error) if _has_own_init(error) else error, 5)
        if len(pickled) <= _MOST_PICKLED:
            return msgspec.msgpack.encode(msgspec.structs.replace(raised, pickled=pickled, own=own))
    return msgspec.msgpack.encode(raised)


def words(error: BaseException) -> str:
    """Its text, as far as there is one. Never raises."""
    return _text(lambda: str(error))[:_MOST]


def is_interrupt(error: BaseException) -> bool:
    """Whether it may be a Ctrl-C that came meanwhile: those go to the main thread alone."""
    main = threading.current_thread() is threading.main_thread()
    return main and isinstance(error, KeyboardInterrupt)


def unreadable(error: BaseException, what: str, rank: int, host: str) -> ActorError:
    """What `what` answered cannot be unpickled here."""
    why = f"{type(error).__name__}: {words(error)}"
    message = f"what {what} returned on rank {rank} cannot be unpickled here: {why}"
    return ActorError(message, rank=rank, host=host)


def _trace(error: BaseException, skip: int) -> str:
    trace = error.__traceback__
    for _ in range(skip):
        trace = trace.tb_next if trace is not None else None
    return "".join(traceback.format_exception(type(error), error, trace))


class _Bare:
    """Pickles as an exception that is made again without its __init__, which may want other
    arguments than those that it gave to its base."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[object, ...]:
        return _made, (type(self._error), self._error.args, dict(vars(self._error)))


def _made(kind: type[BaseException], args: tuple[object, ...], state: dict[str, object]) -> object:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


def _has_own_init(error: BaseException) -> bool:
    """And nothing that pickles it in its own way."""
    kind = type(error)
    plain = kind.__reduce__ is BaseException.__reduce__ and (
        kind.__reduce_ex__ is BaseException.__reduce_ex__
    )
    return plain and inspect.isfunction(kind.__init__)


def _text(make: Callable[[], str]) -> str:
    """What `make` makes, where it can; what UTF-8 has no bytes for is escaped."""
    try:
        return str.encode(make(), "utf-8", "backslashreplace").decode()
    except BaseException:  # code of a user's, which must not end the thread that answers
        return "(its text cannot be made)"


def unpack(data: bytes | bytearray | memoryview, what: str, rank: int, host: str) -> ActorError:
    """`what` was called on `rank`. An exception that cannot be unpickled here is its text."""
    try:
        raised = msgspec.msgpack.decode(data, type=_Raised)
    except UNDECODABLE:
        return ActorError(f"{what} failed on rank {rank}, and why cannot be read", rank=rank)
    error = ActorError(
        f"{what} raised {raised.kind} on rank {rank}: {raised.text}",
        rank=rank,
        host=host,
        traceback=raised.traceback,
    )
    try:
        cause = pickle.loads(raised.pickled) if raised.pickled else None
    except BaseException as broken:
        if is_interrupt(broken):
            raise
        return error
    if raised.own and isinstance(cause, ActorError):
        return cause
    if isinstance(cause, BaseException):
        error.__cause__ = cause
        with contextlib.suppress(Exception):  # how it is made is its own
            if cause.__cause__ is None:  # else its caller's print would not say where it came from
                cause.__cause__ = RemoteTraceback(raised.traceback)
    return error


class RemoteTraceback(Exception):
    """The cause of an exception that was raised in another process, printed as its traceback."""

    def __str__(self) -> str:
        return f"\n{self.args[0].rstrip()}"
