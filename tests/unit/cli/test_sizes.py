from __future__ import annotations

import pytest

from transport.cli.sizes import parse_sizes
from transport.errors import InvalidUse

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1", (1,)),
        ("64KiB", (64 * KIB,)),
        ("4KiB,1MiB", (4 * KIB, MIB)),
        ("4KiB..256KiB", (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB)),
        ("4KiB..100KiB", (4 * KIB, 16 * KIB, 64 * KIB, 100 * KIB)),
        ("8..8", (8,)),
        ("1,4..16,4", (1, 4, 16)),
        ("1MB", (10**6,)),
    ],
)
def test_sizes_that_make_sense(text, sizes):
    assert parse_sizes(text) == sizes


def test_the_default_has_nine_rows():
    sizes = parse_sizes("4KiB..256MiB")
    assert (sizes[0], sizes[-1], len(sizes)) == (4 * KIB, 256 * MIB, 9)


@pytest.mark.parametrize(
    "text", ["", "0", "4KiB..", "..4KiB", "8..4", "4XiB", "-4", "4KiB,", "0..8"]
)
def test_sizes_that_make_none(text):
    with pytest.raises(InvalidUse):
        parse_sizes(text)
