"""One line of what `transport doctor` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "missing"]
"""ok: as it should be; note: worth knowing; missing: something cannot be used, see the remedy."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is, whether that is good, and what would help."""

    section: str
    name: str
    state: State
    value: str
    remedy: str = ""


def judged(section: str, name: str, value: str, remedy: str) -> Finding:
    """Worth a note where there is something to do."""
    return Finding(section, name, "note" if remedy else "ok", value, remedy)
