"""Where an engine can be reached, as text and as values. May import errors only; opens no socket.

"10.0.0.7:5000", "[fe80::1%eth0]:5000" and "name:5000" are TCP; "unix:/run/x.sock" is a path and
"unix:@x" an abstract name, which exists in one network namespace and vanishes with its owner.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from transport.errors import InvalidUse

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TEXT = 300
# sun_path holds 108 bytes; paths end with a NUL and abstract names begin with one (unix(7)).
_MAX_UNIX = 107
_HOST = re.compile(r"[A-Za-z0-9_.\-]+")
_HOST6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.\-]+)?")


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host name or number and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixPath:
    """A unix socket in the file system."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"

    @property
    def sockaddr(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class UnixName:
    """A unix socket in the abstract name space."""

    name: str

    def __str__(self) -> str:
        return f"unix:@{self.name}"

    @property
    def sockaddr(self) -> str:
        return f"\0{self.name}"


Address: TypeAlias = TcpAddress | UnixPath | UnixName


def is_unix(address: Address) -> bool:
    """Whether descriptors can travel there."""
    return not isinstance(address, TcpAddress)


def parse(text: str) -> Address:
    """Reads an address. Raises InvalidUse that names the text."""
    _check_text(text)
    if not 0 < len(text) <= MAX_TEXT:
        raise InvalidUse(f"an address has 1 to {MAX_TEXT} characters: {text[:MAX_TEXT]!r}")
    if text.startswith("unix:"):
        return _parse_unix(text)
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not (_HOST6 if bracketed else _HOST).fullmatch(host):
        raise InvalidUse(f"{text!r} is not an address; write host:port, [ipv6]:port or unix:...")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise InvalidUse(f"{text!r} needs a port from 0 to 65535 after its last colon")
    return TcpAddress(host, int(port))


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InvalidUse(f"an address is text, not {text!r:.80}")


def _parse_unix(text: str) -> Address:
    rest = text.removeprefix("unix:")
    name = rest.removeprefix("@")
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise InvalidUse(f"{text!r} cannot be encoded as a file name") from None
    if not 0 < length <= _MAX_UNIX or "\0" in name:
        raise InvalidUse(
            f"{text!r} needs 1 to {_MAX_UNIX} bytes after its prefix, none of them NUL"
        )
    if rest.startswith("@"):
        return UnixName(name)
    if not rest.startswith("/"):
        raise InvalidUse(f"{text!r} needs an absolute path, or @name for an abstract one")
    return UnixPath(rest)


def parse_all(texts: Iterable[str]) -> tuple[Address, ...]:
    """Reads several and drops repetitions."""
    return tuple(dict.fromkeys(parse(text) for text in texts))


def in_order(addresses: Iterable[Address], *, prefer_unix: bool) -> tuple[Address, ...]:
    """The order in which to try them: a unix socket, which proves the same host, before TCP."""
    return tuple(sorted(addresses, key=lambda address: is_unix(address) != prefer_unix))
