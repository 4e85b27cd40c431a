"""Sizes on the command line. May import types; pure."""

from __future__ import annotations

import click

from transport.errors import InvalidUse
from transport.types import parse_bytes

STEP = 4  # a range climbs by this factor: nine rows from 4 KiB to 256 MiB


def parse_sizes(text: str) -> tuple[int, ...]:
    """Reads "64KiB", "4KiB,1MiB" or "4KiB..256MiB"; a range has both of its ends.

    Raises InvalidUse for what is no size, is zero, or runs backwards.
    """
    sizes: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        low = _positive(first)
        sizes += _climb(low, _positive(last), part) if dots else [low]
    return tuple(dict.fromkeys(sizes))


def _climb(low: int, high: int, text: str) -> list[int]:
    if high < low:
        raise InvalidUse(f"the range {text!r} runs backwards")
    sizes = [low]
    while sizes[-1] * STEP < high:
        sizes.append(sizes[-1] * STEP)
    return [*sizes, high] if high > low else sizes


def _positive(text: str) -> int:
    size = parse_bytes(text)
    if size < 1:
        raise InvalidUse(f"{text!r}: a message has at least one byte")
    return size


def sizes_option(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """The callback of an option that takes a list or a range of sizes."""
    try:
        return parse_sizes(value)
    except InvalidUse as error:
        raise click.BadParameter(str(error), ctx, param) from None


def size_option(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """The callback of an option that takes one size."""
    try:
        return _positive(value)
    except InvalidUse as error:
        raise click.BadParameter(str(error), ctx, param) from None
