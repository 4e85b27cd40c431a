"""Small value types that every room shares. May import errors, no other room."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from transport.errors import InvalidUse

if TYPE_CHECKING:
    from typing_extensions import Self

Incarnation: TypeAlias = bytes
"""16 random bytes that name one life of one engine."""

INCARNATION_BYTES = 16

UNDECODABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for bytes from outside; RecursionError also for nesting that it skips."""


class Closing:
    """`with`, for what has a `close()`."""

    __slots__ = ()

    def close(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Access(enum.Flag):
    """What a peer may do to a region. The values are those of C's ``enum tn_access``."""

    READ = 1
    WRITE = 2
    READ_WRITE = 3

    @classmethod
    def parse(cls, value: Access | str) -> Access:
        """Reads "read", "write" or "read-write"; raises InvalidUse for anything else."""
        if isinstance(value, Access):
            return value
        try:
            return _ACCESS_BY_NAME[value]
        except (KeyError, TypeError):
            wanted = ", ".join(repr(name) for name in _ACCESS_BY_NAME)
            raise InvalidUse(f"access must be one of {wanted}, not {value!r}") from None

    def __str__(self) -> str:
        return next((name for name, access in _ACCESS_BY_NAME.items() if access is self), "none")


NOBODY = Access(0)
"""Of memory for this engine's own use. The NIC knows: a peer that guesses the key is refused."""

_ACCESS_BY_NAME = {"read": Access.READ, "write": Access.WRITE, "read-write": Access.READ_WRITE}


@dataclass(frozen=True, slots=True)
class Viability:
    """Whether something can be used here; when not, why not and what would help."""

    usable: bool
    reason: str
    remedy: str = ""

    def __bool__(self) -> bool:
        return self.usable


@dataclass(frozen=True, slots=True)
class Offer:
    """What one side's provider tells the other's during the handshake; `fds` stay the maker's."""

    data: bytes
    fds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What is known of a connection before providers are asked about it.

    `pid` and `uid` are as the kernel tells (SO_PEERCRED of a unix socket), else 0 and -1.
    """

    is_unix: bool
    pid: int
    uid: int
    initiator: bool
    incarnation: Incarnation


def check_timeout(seconds: Any) -> float | None:
    """A time-out as it came from the user; None is none. Raises InvalidUse for what is no time."""
    if seconds is None:
        return None
    if not isinstance(seconds, (int, float)) or math.isnan(seconds):
        raise InvalidUse(f"a timeout is a number of seconds or None, not {seconds!r:.80}")
    return min(float(seconds), _LONGEST)


_LONGEST = 1e9  # seconds; C counts nanoseconds in 64 bits

_UNITS = {
    "": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}


def parse_bytes(text: str) -> int:
    """Reads "65536", "64 KiB" or "1.5MB". Raises InvalidUse for all that is no whole number."""
    pattern = r"\s*([0-9]{1,18})(?:\.([0-9]{1,9}))?\s*([kmgt]i?b|b?)\s*"
    match = re.fullmatch(pattern, text, re.IGNORECASE)
    if match is None:
        raise InvalidUse(f"{text!r} is not a size; write it as in 65536, 64KiB or 1.5MB")
    whole, fraction, unit = match[1], match[2] or "", match[3].lower().removeprefix("b")
    scale: int = 10 ** len(fraction)
    value, rest = divmod(int(whole + fraction) * _UNITS[unit], scale)
    if rest:
        raise InvalidUse(f"{text!r} is not a whole number of bytes")
    return value


def format_bytes(count: int) -> str:
    """Writes a size in binary units with at most one decimal: "512 B", "64 KiB", "1.5 MiB"."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"
