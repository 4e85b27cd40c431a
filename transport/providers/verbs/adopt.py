"""Open RDMA contexts of somebody else: found in what the caller passes, checked before use.

May import ffi, errors and the standard library. The owner keeps the context open until the engine
is closed; we never close it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from transport.errors import InvalidUse
from transport.ffi import check, ffi, lib, text

_NAME_BYTES = 64
_WORD = 8  # the library is for 64-bit systems only
_OBJECT_HEAD = 16

Context: TypeAlias = Any
"""A pyverbs Context, or the address of a struct ibv_context."""


def adopt(contexts: Context | Iterable[Context], library: str | None) -> dict[str, int]:
    """Addresses by device. Raises InvalidUse for what is no open context of this libibverbs."""
    many = isinstance(contexts, Iterable) and not isinstance(contexts, (str, bytes))
    found: dict[str, int] = {}
    for context in contexts if many else [contexts]:
        device, address = _address(context, library)
        if device in found:
            raise InvalidUse(f"two contexts of {device} were passed: one is enough")
        found[device] = address
    return found


def _address(context: Context, library: str | None) -> tuple[str, int]:
    if isinstance(context, int) and not isinstance(context, bool):
        if not 0 < context < 1 << 63:
            raise InvalidUse(f"{context} is no address of a struct ibv_context")
        return _checked(library, context), context
    kind = type(context)
    if not kind.__module__.startswith("pyverbs.") or not hasattr(context, "name"):
        raise InvalidUse(
            f"verbs_context= takes a pyverbs Context or the address of a struct ibv_context, "
            f"not {kind.__module__}.{kind.__qualname__}"
        )
    return _search(context, library)


def _search(context: Context, library: str | None) -> tuple[str, int]:
    """The pointer in the object's own memory that leads to an open context of its device.

    pyverbs offers it under no name in every version; the property `context` of rdma-core 44 even
    treats it as a Python object and counts references in it. So each word of the object is tried;
    wrong ones are refused without being followed. Its other properties would follow a null pointer
    where the Context is closed.
    """
    size = type(context).__basicsize__ & -_WORD
    words = ffi.cast("uintptr_t *", id(context))
    for at in range(_OBJECT_HEAD // _WORD, size // _WORD):
        address = words[at]
        if not address or address % _WORD:
            continue
        try:
            device = _checked(library, address)
        except InvalidUse:
            continue
        if device == _text(context.name):
            return device, address
    raise InvalidUse(
        "the pyverbs Context is closed, or uses another copy of libibverbs than the one that is "
        "loaded here (TRANSPORT_VERBS_LIB names it)"
    )


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _checked(library: str | None, address: int) -> str:
    """The device's name."""
    name = ffi.new("char[]", _NAME_BYTES)
    path = library.encode() if library else ffi.NULL
    check(lib.tn_verbs_context_check(path, address, name, _NAME_BYTES))
    return text(name)
