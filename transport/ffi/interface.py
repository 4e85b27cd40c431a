"""Whether the built module belongs to the Python beside it.

Duty: a number for the C interface that a source tree holds, which bindings/build.py compiles in and
this room compares when it is imported. Imports the standard library only: the build runs this file
before there is a package to import.
"""

from __future__ import annotations

import zlib
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def number(root: Path = _ROOT) -> int | None:
    """Of the cdefs and the public headers under `root`; None where there is no source tree.

    An installed wheel has none, and needs none: its module and its Python came together.
    """
    headers = root / "native" / "include"
    if not (headers / "transport_native.h").exists():
        return None
    files = [*headers.rglob("*.h"), *(root / "bindings").glob("*.cdef.h")]
    total = 0
    for path in sorted(files):
        total = zlib.crc32(path.read_bytes(), total)
    return total


def check(built: int | None, root: Path = _ROOT) -> None:
    """Raises ImportError where the module was built from another interface than `root` holds."""
    wanted = number(root)
    if wanted is not None and built != wanted:
        raise ImportError(
            "transport.ffi._native was built from another state of the C interface than "
            f"{root / 'bindings'} now holds; build it again: make setup"
        )
