"""Shapes of published models, from the facts of their public config.json. Pure; may import errors.

A table is name -> `TensorShape`, named and typed as in the released checkpoint. One file for each
family; no weights, and nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.errors import InvalidUse
from transport.sharding.models import deepseek, llama
from transport.sharding.models.shape import TensorShape as TensorShape
from transport.sharding.models.shape import elements as elements
from transport.sharding.models.shape import nbytes as nbytes
from transport.sharding.models.shape import recast as recast

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.sharding.models.shape import Table


@dataclass(frozen=True)
class Published:
    """A model whose config.json is public. `kv_heads`: where keys are grouped, else None."""

    tensors: Callable[[], Table]
    kv_heads: int | None = None


MODELS = {
    "deepseek-v3": Published(lambda: deepseek.tensors(deepseek.DEEPSEEK_V3)),
    "kimi-k2": Published(lambda: deepseek.tensors(deepseek.KIMI_K2)),
    "llama-3-405b": Published(
        lambda: llama.tensors(llama.LLAMA_3_405B), llama.LLAMA_3_405B.num_key_value_heads
    ),
}


def published(name: str) -> Published:
    """A built-in model. Raises InvalidUse with the names that there are."""
    if name not in MODELS:
        raise InvalidUse(f"there is no built-in model {name!r}: choose from {', '.join(MODELS)}")
    return MODELS[name]
