"""Which memory is whose: the GPU that the memory of a view belongs to, as everybody names it.

May import errors. Touches no driver: what a tensor says of itself is enough to keep CPUs away.
"""

from __future__ import annotations

import operator
import re
from typing import Any, NamedTuple

from transport.errors import InvalidUse

KINDS = ("cuda", "hip")
"""torch's names for device types of GPUs; a ROCm build of torch calls its own "cuda", too."""

_NAME = re.compile(r"(cuda|hip)(?::([0-9]{1,4}))?", re.ASCII)
_LAST = 9999  # as many digits


class Device(NamedTuple):
    """A GPU by its ordinal in this process. `kind` is "cuda" or "hip"."""

    kind: str
    ordinal: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.ordinal}"


def parse(device: Any) -> Device | None:
    """The GPU that "cuda", "cuda:1", "hip", "hip:1", 1 or a torch.device names; None for "cpu".

    Raises InvalidUse for anything else. Without an ordinal it is torch's current device where torch
    is in use, else the first.
    """
    if device is None:
        return None
    if isinstance(device, Device):
        return device
    if not isinstance(device, (int, str)):
        device = _ordinal(device)
    if isinstance(device, int) and not isinstance(device, bool) and 0 <= device <= _LAST:
        return Device("cuda", device)
    text = str(device)
    match = _NAME.fullmatch(text)
    if match:
        return Device(match[1], _current() if match[2] is None else int(match[2]))
    if text in ("cpu", "cpu:0"):
        return None
    raise InvalidUse(
        'a device is "cpu", "cuda", "cuda:N", "hip", "hip:N", N or a torch.device,'
        f" not {device!r:.80}"
    )


def _ordinal(device: Any) -> Any:
    """A torch.device as text, an integer-like as int."""
    if hasattr(device, "type") and hasattr(device, "index"):
        return str(device)
    try:
        return operator.index(device)
    except TypeError:
        return device


def _current() -> int:
    import sys

    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return int(cuda.current_device())
    return 0
