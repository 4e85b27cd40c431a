"""torch, for what is nothing without it. May import errors."""

from __future__ import annotations

from typing import Any

from transport.errors import Unavailable


def needed_torch() -> Any:
    """Raises Unavailable where there is none."""
    try:
        import torch
    except ImportError:
        raise Unavailable("torch is not installed", "pip install torch") from None
    return torch
