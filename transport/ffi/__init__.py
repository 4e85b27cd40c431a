"""The only door to C: the built module, and statuses turned into typed errors.

May import: errors, types, config. Nothing else in the package imports `_native`.
"""

from __future__ import annotations

from typing import Any

from transport import errors
from transport.ffi import _native, interface
from transport.ffi._native import ffi, lib

__all__ = [
    "LIBRARY",
    "NativeEngine",
    "NativePeer",
    "check",
    "failure",
    "ffi",
    "last_error",
    "lib",
    "text",
]

interface.check(getattr(lib, "TN_INTERFACE", None))

LIBRARY: str = _native.__file__  # for those who load functions of ours by name, as torch does


class NativeEngine:
    """A `struct tn_engine *`, under a name that other rooms can mention in their types."""

    __slots__ = ("pointer",)

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer


class NativePeer:
    """A `struct tn_peer *`."""

    __slots__ = ("pointer",)

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer


def text(chars: Any) -> str:
    """A C string (pointer or array) as text; bytes that are not UTF-8 are kept visible."""
    raw: bytes = ffi.string(chars)
    return raw.decode("utf-8", "backslashreplace")


def last_error() -> str:
    """Why the last native call of this thread failed; "" if none did."""
    return text(lib.tn_last_error())


def failure(status: int, *, peer: Any = None, op: str | None = None) -> errors.TransportError:
    """The typed error for a status that a native call on this thread just returned."""
    reason = last_error() or text(lib.tn_status_name(status))
    return errors.from_status(status, reason, peer=peer, op=op, error=lib.tn_last_errno())


def check(status: int, *, peer: Any = None, op: str | None = None) -> int:
    """Returns a status >= 0, raises the typed error for any other."""
    if status < 0:
        raise failure(status, peer=peer, op=op)
    return status
