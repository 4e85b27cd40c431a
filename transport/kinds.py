"""The kinds of values a setting may have: how each is read from text, checked and shown.

May import errors, types and the standard library.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.types import format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read from text, checked and shown."""

    words: str  # what to write into the variable
    parse: Callable[[str], Any]  # raises ValueError
    check: Callable[[Any], str | None]  # what is wrong with it, None when nothing is
    show: Callable[[Any], str] = str


def _seconds(value: Any) -> str | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or math.isnan(value):
        return "must be a number of seconds"
    return None if value > 0 else "must be more than 0 seconds"


def _whole(low: int, high: int) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if fits else f"must be a whole number from {low} to {high}"

    return check


def _finite_seconds(value: Any) -> str | None:
    return _seconds(value) or (None if value <= 86400 else "must be at most 86400 seconds")


def _seconds_from(least: float) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        wrong = _finite_seconds(value)
        return wrong or (None if value >= least else f"must be at least {least:g} seconds")

    return check


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be text"


def _optional(check: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    return lambda value: None if value is None else check(value)


def _path(value: Any) -> str | None:
    return None if isinstance(value, Path) else "must be a path"


def _parse_path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~name, and nobody has it
        raise ValueError(str(error)) from None


def _few(value: Any) -> str | None:
    if not isinstance(value, tuple) or not all(isinstance(n, str) and n for n in value):
        return "must be names, separated by commas"
    return None if len(set(value)) == len(value) else "names one of them twice"


def _interfaces(value: Any) -> str | None:
    wrong = _few(value)
    for name in () if wrong else value:
        plain = name.removeprefix("^")
        try:
            if not plain:
                raise ValueError
            if "/" in plain:
                ipaddress.ip_network(plain, strict=False)
        except ValueError:
            return f"has {name!r}, which is neither an interface nor a network"
    return wrong


def _names(value: Any) -> str | None:
    if not isinstance(value, tuple) or not value or _few(value):
        return _few(value) if value else "must name at least one, separated by commas"
    return None


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


_PID = re.compile(r"0*[1-9][0-9]{0,9}", re.ASCII)


def _ptracer(value: Any) -> str | None:
    fits = isinstance(value, str) and (value in ("", "any") or _PID.fullmatch(value))
    return None if fits else 'must be "any", a process id, or empty'


_LEVELS = ("debug", "info", "warning", "error", "critical")


def _level(value: Any) -> str | None:
    return None if value in ("", *_LEVELS) else f"must be one of {', '.join(_LEVELS)}, or empty"


def _parse_address(text: str) -> Any:
    """A GID as address: IPv4 where it maps one."""
    address = ipaddress.ip_address(text.strip())
    return getattr(address, "ipv4_mapped", None) or address


def _address(value: Any) -> str | None:
    fits = isinstance(value, (ipaddress.IPv4Address, ipaddress.IPv6Address))
    return None if fits else "must be an IPv4 or IPv6 address"


def _parse_networks(text: str) -> tuple[Any, ...]:
    return tuple(ipaddress.ip_network(name, strict=False) for name in _parse_names(text))


def _networks(value: Any) -> str | None:
    kinds = (ipaddress.IPv4Network, ipaddress.IPv6Network)
    fits = isinstance(value, tuple) and all(isinstance(item, kinds) for item in value)
    return None if fits else "must be networks (10.1.0.0/16, fd00::/8), separated by commas"


def _key(value: Any) -> str | None:
    # Bit 15 is the membership; a key without the other bits is invalid by specification.
    fits = _whole(1, 0xFFFF)(value) is None and value & 0x7FFF
    return None if fits else "must be a P_Key from 0x0001 to 0xffff with a bit beside 0x8000"


_MTUS = (256, 512, 1024, 2048, 4096)


def _mtu(value: Any) -> str | None:
    fits = value == 0 or value in _MTUS
    return None if fits else f"must be one of {', '.join(map(str, _MTUS))}, or 0 for the port's"


_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_PCI = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_Map = tuple[tuple[str, tuple[str, ...]], ...]


def _parse_map(text: str) -> _Map:
    entries = [entry.partition("=") for entry in text.split(";") if entry.strip()]
    return tuple((place.strip().lower(), _parse_names(names)) for place, _, names in entries)


def _map(value: Any) -> str | None:
    """Places are gpuN, cpu:N (a NUMA node), or a PCI address."""
    wrong = 'must be like "gpu0=mlx5_0,mlx5_1;cpu:1=mlx5_2" (a PCI address may stand for gpu0)'
    if not isinstance(value, tuple) or not all(isinstance(row, tuple) for row in value):
        return wrong
    for row in value:
        if len(row) != 2 or not _is_place(row[0]) or _names(row[1]):
            return wrong
    places = [row[0] for row in value]
    return None if len(set(places)) == len(places) else "names a place twice"


def _is_place(place: Any) -> bool:
    if not isinstance(place, str):
        return False
    for prefix in ("gpu", "cpu:"):
        if place.startswith(prefix):
            return bool(_NUMBER.fullmatch(place[len(prefix) :]))
    return bool(_PCI.fullmatch(place))


def _show_map(value: _Map) -> str:
    return ";".join(f"{place}={','.join(names)}" for place, names in value)


def _show_hex(value: int | None) -> str:
    return "" if value is None else f"{value:#06x}"


def _show_all(value: Any) -> str:
    return ",".join(map(str, value))


def _show_optional(value: Any) -> str:
    return "" if value is None else str(value)


_TERABYTE = 1 << 40

FOREVER = Kind("seconds, or inf", float, _seconds)
SECONDS = Kind("seconds", float, _finite_seconds)
TEXT = Kind("text", str, _optional(_text), _show_optional)
PATH = Kind("a path", _parse_path, _optional(_path), _show_optional)
FILLED_PATH = Kind("a path", _parse_path, _path)
NAMES = Kind("names, separated by commas", _parse_names, _names, _show_all)
FEW_NAMES = Kind("names, separated by commas", _parse_names, _few, _show_all)
INTERFACES = Kind(
    "interfaces or networks, separated by commas; ^ leaves one out",
    _parse_names,
    _interfaces,
    _show_all,
)
PTRACER = Kind('"any" or a process id', str, _ptracer)
LEVEL = Kind(f"one of {', '.join(_LEVELS)}", str.lower, _level)
ADDRESS = Kind("an IPv4 or IPv6 address", _parse_address, _optional(_address), _show_optional)
NETWORKS = Kind("networks, separated by commas", _parse_networks, _networks, _show_all)
PKEY = Kind("a P_Key (0xffff)", lambda text: int(text, 0), _optional(_key), _show_hex)
MTU = Kind(f"bytes: {', '.join(map(str, _MTUS))}; or 0", int, _mtu)
NIC_MAP = Kind("place=device,...;...", _parse_map, _map, _show_map)


def size(low: int, high: int) -> Kind:
    """Bytes. Limits beyond a terabyte only keep the number in range; nobody need read them."""
    least = f", at least {format_bytes(low)}" if low else ""
    most = f", at most {format_bytes(high)}" if high < _TERABYTE else ""
    words = f"a size (65536, 64KiB){least}{most}"
    return Kind(words, parse_bytes, _whole(low, high), format_bytes)


def seconds(least: float) -> Kind:
    return Kind(f"seconds, at least {least:g}", float, _seconds_from(least))


def count(low: int, high: int) -> Kind:
    return Kind(f"a whole number from {low} to {high}", int, _whole(low, high))


def choice(*words: str) -> Kind:
    listed = ", ".join(words[:-1]) + f" or {words[-1]}"

    def check(value: Any) -> str | None:
        return None if value in words else f"must be {listed}"

    return Kind(listed, str.lower, check)
