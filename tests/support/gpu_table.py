"""The functions of GPU drivers that native/dl/gpu_dl.h lists, read from its text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "native/dl/gpu_dl.h"
DRIVERS = ROOT / "build/gpu-drivers"  # scripts/gpu-drivers.sh

_ENTRY = re.compile(
    r'X\((required|optional), ([\w ]+\*?), (\w+), "(\w*)", "(\w*)", (\d+),\s*"(\w*)",\s*'
    r"(\(.*?\))\)\s*(?=X\(|\Z)",
    re.DOTALL,
)


class Entry(NamedTuple):
    """One line of the list; an empty name: that platform has nothing of the kind."""

    need: str
    result: str
    field: str
    cuda: str
    suffix: str
    since: str
    hip: str
    arguments: str


def entries() -> list[Entry]:
    text = TABLE.read_text()
    body = text[text.index("TN_GPU_SYMBOLS(X)") + 17 : text.index("/* clang-format on */")]
    body = re.sub(r"/\*.*?\*/", "", body.replace("\\\n", "\n"), flags=re.DOTALL)
    found = [Entry(*words) for words in _ENTRY.findall(body)]
    assert len(found) == len(re.findall(r"X\((?:required|optional),", body))
    return found
