"""What a checkpoint says of a tensor before its bytes are read. May import memory.dtypes; pure."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from transport.memory.dtypes import ITEMSIZES

if TYPE_CHECKING:
    from collections.abc import Iterable


class TensorShape(NamedTuple):
    """The global shape, and the element type by a name of transport.memory.dtypes."""

    shape: tuple[int, ...]
    dtype: str


Table = dict[str, TensorShape]

SCALES = re.compile(r"\.weight_scale_inv$")
"""The reciprocal scales of blockwise quantised weights, which lie beside them."""


def elements(table: Table) -> int:
    """How many numbers there are: the parameters, and the scales where there are any."""
    return sum(math.prod(tensor.shape) for tensor in table.values())


def nbytes(table: Table) -> int:
    """Of all tensors, each once."""
    return sum(math.prod(tensor.shape) * ITEMSIZES[tensor.dtype] for tensor in table.values())


def recast(table: Table, dtype: str) -> Table:
    """The same model with every tensor of this type: scales, then without a meaning, are left out.

    That is how a trainer holds it, and a generator that quantises nothing.
    """
    return {
        name: TensorShape(tensor.shape, dtype)
        for name, tensor in table.items()
        if not SCALES.search(name)
    }


def blocks(shape: Iterable[int], block: int) -> tuple[int, ...]:
    """How many blocks of so many elements cover each dimension."""
    return tuple(-(-length // block) for length in shape)
