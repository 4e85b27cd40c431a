"""Every setting: one table of names, types, defaults and help. Imports errors and types only.

Each field of Settings is the environment variable TRANSPORT_<FIELD IN CAPITALS>.
"""

# ruff: noqa: RUF009  (_setting returns a dataclasses.field)

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse
from transport.types import format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "TRANSPORT_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str  # of the environment variable
    attribute: str
    kind: str  # what to write into the variable, in words
    default: str
    help: str
    hidden: bool  # a value that must never be shown


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a value is read from text, checked and shown."""

    words: str
    parse: Callable[[str], Any]
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


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be text"


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _path(value: Any) -> str | None:
    return None if value is None or isinstance(value, Path) else "must be a path"


def _names(value: Any) -> str | None:
    if (
        not isinstance(value, tuple)
        or not value
        or not all(isinstance(n, str) and n for n in value)
    ):
        return "must name at least one, separated by commas"
    return None if len(set(value)) == len(value) else "names one of them twice"


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _ptracer(value: Any) -> str | None:
    fits = isinstance(value, str) and (
        value in ("", "any") or (value.isdecimal() and int(value) > 0)
    )
    return None if fits else 'must be "any", a process id, or empty'


_LEVELS = ("", "debug", "info", "warning", "error", "critical")


def _level(value: Any) -> str | None:
    return (
        None if value in _LEVELS else f"must be one of {', '.join(filter(None, _LEVELS))}, or empty"
    )


_FOREVER = _Kind("seconds, or inf", float, _seconds)
_SECONDS = _Kind("seconds", float, _finite_seconds)
_TEXT = _Kind("text", str, _optional_text, lambda value: value or "")
_PATH = _Kind("path", lambda text: Path(text).expanduser(), _path, lambda value: str(value or ""))
_NAMES = _Kind("names, separated by commas", _parse_names, _names, ",".join)


def _bytes(low: int, high: int) -> _Kind:
    return _Kind("size (65536, 64KiB)", parse_bytes, _whole(low, high), format_bytes)


def _count(low: int, high: int) -> _Kind:
    return _Kind("whole number", int, _whole(low, high))


def _setting(default: Any, kind: _Kind, text: str, *, hidden: bool = False) -> Any:
    metadata = {"kind": kind, "help": text, "hidden": hidden}
    return field(default=default, metadata=metadata, repr=not hidden)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one engine. Checked when made: InvalidUse names the variable."""

    secret: str | None = _setting(
        None,
        _TEXT,
        "the job's shared secret as text; prefer a file, for others may see an environment",
        hidden=True,
    )
    secret_file: Path | None = _setting(
        None, _PATH, "file with the job's shared secret, readable by its owner only"
    )
    deadline: float = _setting(
        60.0, _FOREVER, "after this long a transfer without its own deadline fails"
    )
    connect_timeout: float = _setting(
        10.0, _SECONDS, "finding, proving and describing a peer must end within this"
    )
    liveness: float = _setting(10.0, _SECONDS, "a peer that is silent for this long is lost")
    close_timeout: float = _setting(
        5.0, _SECONDS, "closing a region waits this long for peers that still touch it"
    )
    inline_bytes: int = _setting(
        64 << 10, _bytes(0, 1 << 40), "copies up to this size run inside the submitting call"
    )
    chunk_bytes: int = _setting(
        1 << 20, _bytes(4096, 1 << 30), "larger copies and stream frames are cut into such pieces"
    )
    stream_window: int = _setting(64, _count(1, 65536), "requests in flight on one stream")
    notify_depth: int = _setting(
        64, _count(1, 4096), "notifications that one peer may have unread here"
    )
    max_regions: int = _setting(
        1 << 20, _count(16, 1 << 28), "regions that this engine may have at once"
    )
    providers: tuple[str, ...] = _setting(
        ("shm", "verbs", "tcp"), _NAMES, "ways to move bytes, most wanted first"
    )
    verbs_lib: str | None = _setting(None, _TEXT, "libibverbs to load instead of the system's")
    verbs_device: str | None = _setting(
        None, _TEXT, "RDMA devices to use (names, separated by commas); default all"
    )
    verbs_gid_index: int = _setting(-1, _count(-1, 65535), "GID table index to use; -1 chooses")
    allow_ptracer: str = _setting(
        "",
        _Kind('"any" or a process id', str, _ptracer),
        "who may copy from this process's memory under Yama (PR_SET_PTRACER)",
    )
    log_level: str = _setting(
        "",
        _Kind("level name", str.lower, _level),
        "level of the logger named transport; empty leaves it",
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value, kind = getattr(self, item.name), item.metadata["kind"]
            wrong = kind.check(value)
            if wrong:
                shown = "" if item.metadata["hidden"] else f", not {value!r}"
                raise InvalidUse(f"{variable(item.name)} {wrong}{shown}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Reads the environment; `overrides` (by attribute) win. An empty variable is unset."""
        source = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            text = source.get(variable(item.name), "")
            if text and item.name not in overrides:
                values[item.name] = _read(item.name, text, item.metadata["kind"])
        unknown = overrides.keys() - {item.name for item in dataclasses.fields(cls)}
        if unknown:
            raise InvalidUse(f"there is no setting named {', '.join(sorted(unknown))}")
        return cls(**values, **overrides)

    def shown(self, attribute: str) -> str:
        """A setting's value as text for reports; what is secret is only said to be set or not."""
        item = next(item for item in dataclasses.fields(self) if item.name == attribute)
        value = getattr(self, attribute)
        if item.metadata["hidden"]:
            return "(set)" if value is not None else "(not set)"
        return str(item.metadata["kind"].show(value))


def variable(attribute: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + attribute.upper()


def _read(attribute: str, text: str, kind: _Kind) -> Any:
    try:
        return kind.parse(text)
    except ValueError:
        raise InvalidUse(f"{variable(attribute)} must be {kind.words}, not {text!r}") from None


def _row(item: dataclasses.Field[Any]) -> Setting:
    kind, hidden = item.metadata["kind"], item.metadata["hidden"]
    default = "" if hidden else str(kind.show(item.default))
    return Setting(
        variable(item.name), item.name, kind.words, default, item.metadata["help"], hidden
    )


TABLE: tuple[Setting, ...] = tuple(_row(item) for item in dataclasses.fields(Settings))
"""All settings in the order in which reports print them."""
