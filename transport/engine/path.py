"""Which providers may carry a transfer: from the order and the wishes to a bit mask.

May import errors. The choice among the allowed ones is C's: the first attached link, in the
engine's order, that accepts the transfer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.errors import InvalidUse, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FALLBACKS = ("allow", "error")
GPU_ONLY = "gpu_ipc"  # refuses whatever touches no GPU's memory
SELF = 0  # what an engine copies to and from itself counts as shm's, whatever it may use to others


class Paths:
    """The engine's providers, most wanted first, by name and by number."""

    def __init__(
        self, identifiers: Mapping[str, int], unused: Mapping[str, str] | None = None
    ) -> None:
        self.identifiers = dict(identifiers)
        self.unused = {} if unused is None else unused  # asked for, but of no use here, and why
        self.names = {SELF: "shm"} | {number: name for name, number in identifiers.items()}
        self.all = _mask(identifiers.values())

    def mask(self, provider: str | None, fallback: str | None, attached: Sequence[str]) -> int:
        """The allowed providers as bits.

        A provider that is named is required, unless `fallback="allow"`: then those after it in the
        engine's order may carry the transfer too. `fallback="error"` alone allows only the first
        provider in the engine's order that the peer has `attached`.
        """
        if fallback is not None and fallback not in FALLBACKS:
            raise InvalidUse(f"fallback must be 'allow' or 'error', not {fallback!r}")
        if provider is not None:
            return self._named(provider, fallback)
        if fallback != "error":
            return self.all
        known = [name for name in self.identifiers if name in attached]
        if not known:
            ours = ", ".join(self.identifiers)
            raise Unavailable(f"the peer has none of this engine's providers ({ours})")
        first = 1 + (known[0] == GPU_ONLY)  # which leaves host memory to the one after it
        return _mask(self.identifiers[name] for name in known[:first])

    def name(self, number: int) -> str | None:
        """The provider of that number; None before one has taken the transfer."""
        return self.names.get(number)

    def _named(self, provider: str, fallback: str | None) -> int:
        if provider in self.unused:
            raise Unavailable(f"{provider} cannot be used here: {self.unused[provider]}")
        if provider not in self.identifiers:
            known = ", ".join(self.identifiers)
            raise InvalidUse(f"this engine has no provider {provider!r}; it has {known}")
        if fallback != "allow":
            return 1 << self.identifiers[provider]
        names = list(self.identifiers)
        return _mask(self.identifiers[name] for name in names[names.index(provider) :])


def _mask(numbers: Iterable[int]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask
