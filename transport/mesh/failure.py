"""Exceptions on their way between processes. May import payload's pickle only; no I/O."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import traceback
from typing import Annotated

import cloudpickle
import msgspec
from msgspec import Meta, Struct

from transport.errors import ActorError
from transport.types import UNDECODABLE

_MOST = 1 << 16  # characters of a text that are kept


class _Raised(Struct, frozen=True, array_like=True):
    kind: Annotated[str, Meta(max_length=512)]
    text: Annotated[str, Meta(max_length=_MOST)]
    traceback: Annotated[str, Meta(max_length=_MOST)]
    pickled: bytes
    own: bool  # ours: the call never got to the endpoint


def pack(error: BaseException, *, skip: int = 0, own: bool = False) -> bytes:
    """The exception, as far as it can travel. `skip`: our own frames at the traceback's top.

    `own`: it is what the caller is to get, and not what an endpoint raised.
    """
    trace = error.__traceback__
    for _ in range(skip):
        trace = trace.tb_next if trace is not None else None
    text = "".join(traceback.format_exception(type(error), error, trace))
    with contextlib.suppress(Exception):
        pickled = cloudpickle.dumps(_Bare(error) if _has_own_init(error) else error, 5)
        return msgspec.msgpack.encode(_raised(error, text, pickled, own))
    return msgspec.msgpack.encode(_raised(error, text, b"", False))


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


def _raised(error: BaseException, text: str, pickled: bytes, own: bool) -> _Raised:
    try:
        words = str(error)
    except Exception:
        words = "(its text cannot be made)"
    text = text if len(text) <= _MOST else "...\n" + text[-(_MOST - 4) :]
    return _Raised(type(error).__name__[:512], words[:_MOST], text, pickled, own)


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
    with contextlib.suppress(Exception):
        cause = pickle.loads(raised.pickled)
        if raised.own and isinstance(cause, ActorError):
            return cause
        if isinstance(cause, BaseException):
            error.__cause__ = cause
    return error
