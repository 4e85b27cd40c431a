"""What a process has at this moment, to tell a leak from a working set. Imports nothing of ours."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections import Counter
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def uncollected():
    """What goes meanwhile goes by itself, not because the garbage collector has found it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def descriptors() -> Counter[str]:
    """How many of each kind this process has open: "socket", "anon_inode:[pidfd]", a path."""
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one by which they are listed
            name = str(entry.readlink())
            found[name.partition(":[")[0] if name.startswith(("socket", "pipe")) else name] += 1
    return found


def held() -> Counter[str]:
    """Descriptors and threads by kind."""
    return descriptors() + Counter(f"thread {each.name}" for each in threading.enumerate())


def possessions() -> dict[str, int]:
    """Descriptors, threads, mappings, and resident bytes."""
    gc.collect()
    return {
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "resident": int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE,
    }
