"""What the kernel says of this machine and this process: reads /proc and /sys, nothing else.

Every function takes the root of the file system, so that tests can show it other machines.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path("/")


def read(path: Path) -> str | None:
    """The text of a small file, stripped; None where there is none or it may not be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def cores() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0))


def cpu_model(root: Path = ROOT) -> str:
    text = read(root / "proc/cpuinfo") or ""
    found = re.search(r"^(?:model name|Processor|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or "unknown"


def cpu_features(root: Path = ROOT) -> list[str]:
    """Those that decide how memory is copied."""
    text = read(root / "proc/cpuinfo") or ""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    have = set(found[1].split()) if found else set[str]()
    return [name for name in ("avx2", "avx512f", "erms", "fsrm", "asimd", "sve") if name in have]


def memory_bytes(root: Path = ROOT) -> int:
    found = re.search(r"^MemTotal:\s*(\d+) kB$", read(root / "proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def package_version() -> str:
    try:
        return version("tensor-transport")
    except PackageNotFoundError:
        return "unknown"


def host(root: Path = ROOT) -> dict[str, Any]:
    """The facts that a figure is worth nothing without: the `host` of every JSON result."""
    return {
        "name": platform.node(),
        "machine": platform.machine(),
        "cpu": cpu_model(root),
        "cores": cores(),
        "memory_bytes": memory_bytes(root),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "transport": package_version(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The memory limit of this process's control group; `limit` None: unlimited."""

    limit: int | None
    used: int | None
    path: str


def memory_group(root: Path = ROOT) -> MemoryGroup | None:
    """The tightest limit on the way from this process's group to the top; None: cannot tell."""
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", ("limit_in_bytes", "usage_in_bytes")
        elif number == "0":
            top, names = root / "sys/fs/cgroup", ("max", "current")
        else:
            continue
        found = _tightest(top, path, names)
        if found is not None:
            return found
    return None


def _tightest(top: Path, path: str, names: tuple[str, str]) -> MemoryGroup | None:
    groups: list[MemoryGroup] = []
    group = top / path.lstrip("/")
    while group == top or top in group.parents:
        limit = read(group / f"memory.{names[0]}")
        if limit is not None:
            used = read(group / f"memory.{names[1]}")
            groups.append(MemoryGroup(_limit(limit), int(used) if used else None, str(group)))
        group = group.parent
    limited = [group for group in groups if group.limit is not None]
    return min(limited, key=lambda group: group.limit or 0, default=groups[0] if groups else None)


def _limit(text: str) -> int | None:
    # Version 1 writes the largest multiple of the page size where version 2 writes "max".
    return None if text == "max" or int(text) >= 1 << 62 else int(text)


def namespaces(root: Path = ROOT) -> dict[str, str]:
    """Kind -> the kernel's name of this process's namespace ("net:[4026531840]")."""
    found: dict[str, str] = {}
    for kind in ("user", "pid", "net", "ipc"):
        try:
            found[kind] = str((root / "proc/self/ns" / kind).readlink())
        except OSError:
            continue
    return found


def whole_user_namespace(root: Path = ROOT) -> bool:
    """Whether all uids are mapped to themselves, as in the first user namespace."""
    return (read(root / "proc/self/uid_map") or "").split() == ["0", "0", "4294967295"]


def ptrace_scope(root: Path = ROOT) -> int | None:
    """Yama's setting; None where the kernel has no Yama (then only the uid decides)."""
    text = read(root / "proc/sys/kernel/yama/ptrace_scope")
    return int(text) if text is not None and text.isdecimal() else None


def has_capability(bit: int, root: Path = ROOT) -> bool:
    status = read(root / "proc/self/status") or ""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(found and int(found[1], 16) >> bit & 1)


CAP_IPC_LOCK = 14
CAP_SYS_PTRACE = 19
