"""From one dtype to another, for whole buffers at once.

May import memory.dtypes and errors; numpy does what it knows, torch, imported late, the rest. The
values are those of torch's `Tensor.to`: rounded to nearest, ties to even; what is too large for a
float8 becomes what torch makes of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transport.errors import LayoutError, Unavailable
from transport.memory.dtypes import ITEMSIZES

if TYPE_CHECKING:
    from collections.abc import Callable

    Buffer = np.ndarray[Any, np.dtype[np.uint8]]
    Convert = Callable[[Buffer, Buffer], None]

_ORDER = ("bool", "int", "float", "complex")  # nothing is converted to a kind before its own
_BYTES_ONLY = ("float8_e8m0fnu", "float4_e2m1fn_x2", "complex32")  # that nobody converts


def check_convertible(name: str, given: str, wanted: str) -> None:
    """Raises LayoutError naming the tensor where a conversion would lose what it must not."""
    if given == wanted:
        return
    odd = [dtype for dtype in (given, wanted) if dtype in _BYTES_ONLY]
    if odd or _ORDER.index(_kind(given)) > _ORDER.index(_kind(wanted)):
        raise LayoutError(
            f"tensor {name!r} is {given} at its source and {wanted} at its target; only to the same"
            " kind of number, or a wider one, is converted on the way"
        )


def converter(given: str, wanted: str) -> Convert:
    """Fills the second buffer with the elements of the first. Raises Unavailable without torch."""
    if _in_numpy(given) and _in_numpy(wanted):
        return _numpy_converter(given, wanted)
    return _torch_converter(given, wanted)


def _kind(dtype: str) -> str:
    kind = dtype.rstrip("0123456789").removeprefix("u").removeprefix("b")
    return "bool" if dtype == "bool" else next(k for k in _ORDER if kind.startswith(k))


def _in_numpy(dtype: str) -> bool:
    # float32 to float16 is quicker in torch, but numpy is always there, and the values are equal.
    return dtype in np.sctypeDict and dtype in ITEMSIZES


def _numpy_converter(given: str, wanted: str) -> Convert:
    before, after = np.dtype(given), np.dtype(wanted)

    def convert(source: Buffer, target: Buffer) -> None:
        with np.errstate(over="ignore"):  # too large a number becomes infinite
            np.copyto(target.view(after), source.view(before), casting="unsafe")

    return convert


def _torch_converter(given: str, wanted: str) -> Convert:
    try:
        import torch
    except ImportError:
        words = f"to convert {given} to {wanted} needs torch"
        raise Unavailable(words, "install it with: pip install 'tensor-transport[torch]'") from None
    before, after = getattr(torch, given, None), getattr(torch, wanted, None)
    if before is None or after is None:
        raise Unavailable(f"this torch has not both of {given} and {wanted}", "install a newer one")

    def convert(source: Buffer, target: Buffer) -> None:
        torch.from_numpy(target).view(after).copy_(torch.from_numpy(source).view(before))

    return convert
