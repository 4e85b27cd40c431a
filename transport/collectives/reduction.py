"""How values of several ranks become one. Pure; imports errors only."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, TypeAlias

from transport.errors import InvalidUse


class Reduction(enum.Enum):
    """`AVERAGE` is the sum divided by the number of ranks."""

    SUM = "sum"
    PRODUCT = "prod"
    MINIMUM = "min"
    MAXIMUM = "max"
    AVERAGE = "avg"

    @classmethod
    def parse(cls, value: Reduction | Premultiplied | str) -> Reduce:
        """Reads "sum", "prod", "min", "max" or "avg". Raises InvalidUse for anything else."""
        given: Any = value
        if isinstance(given, (Reduction, Premultiplied)):
            return given
        try:
            return cls(given)
        except ValueError:
            names = ", ".join(repr(each.value) for each in cls)
            raise InvalidUse(
                f"a reduction is one of {names}, or Premultiplied, not {given!r:.80}"
            ) from None


@dataclass(frozen=True, slots=True)
class Premultiplied:
    """The sum of what each rank has, times a factor of its own."""

    factor: float


Reduce: TypeAlias = Reduction | Premultiplied
