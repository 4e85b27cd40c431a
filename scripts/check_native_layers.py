"""Checks by reading #include and import lines that the C rooms depend downward only.

engine -> providers -> memory -> collectives -> gpu -> dl -> abi -> base; one provider never
includes another; no shipped file includes a foreign library's header (the build must work with
libc's alone); only transport/ffi imports `_native`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LAYERS = ["base", "abi", "dl", "gpu", "collectives", "memory", "providers", "engine"]
EVERYWHERE = {"include"}  # the public header, which includes only libc
NOT_SHIPPED = {"fakes", "tests", "fuzz", "bench"}  # may include anything
FOREIGN = re.compile(r"infiniband/|rdma/|cuda|nvml|hip/|hsa/|rocm|r?nccl|gdrapi|efadv|mlx5dv")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
IMPORT_NATIVE = re.compile(r"^\s*(from|import)\s[^#\n]*\b_native\b", re.MULTILINE)


def resolve(native: Path, source: Path, name: str) -> Path | None:
    """The project file that an include names, by the compiler's search order; None when libc's."""
    for folder in (source.parent, native / "include", native):
        if (folder / name).is_file():
            return (folder / name).resolve().relative_to(native.resolve())
    return None


def complaint(source: Path, target: Path) -> str | None:
    """Why `source` may not include `target` (both relative to native/), or None when it may."""
    room, other = source.parts[0], target.parts[0]
    if other in EVERYWHERE or room in NOT_SHIPPED:
        return None
    if room in EVERYWHERE:
        return "the public header includes only libc"
    for name in (room, other):
        if name not in LAYERS:
            return f"the room {name}/ has no place in the order; {Path(__file__).name} gives it one"
    if LAYERS.index(other) > LAYERS.index(room):
        return f"{other}/ lies above {room}/"
    if room == other == "providers" and len(source.parts) > 2 and len(target.parts) > 2:
        return None if source.parts[1] == target.parts[1] else "providers do not know each other"
    return None


def native_problems(native: Path) -> list[str]:
    """One line per include that points the wrong way."""
    problems = []
    for path in sorted(native.rglob("*.[ch]")):
        source = path.relative_to(native)
        for bracket, name in INCLUDE.findall(path.read_text()):
            target = resolve(native, path, name)
            why = complaint(source, target) if target else None
            if source.parts[0] not in NOT_SHIPPED and not target:
                if FOREIGN.search(name):
                    why = "foreign headers are declared in native/abi and never included"
                elif bracket == '"':
                    why = "no such file"
            if why:
                problems.append(f"{path}: includes {name}: {why}")
    return problems


def python_problems(package: Path) -> list[str]:
    """One line per file outside transport/ffi that reaches for the built module."""
    return [
        f"{path}: imports _native; only {package}/ffi may"
        for path in sorted(package.rglob("*.py"))
        if "ffi" not in path.parts and IMPORT_NATIVE.search(path.read_text())
    ]


def main() -> int:
    """Prints what is wrong; the exit status tells whether anything is."""
    problems = native_problems(Path("native")) + python_problems(Path("transport"))
    print("\n".join(problems) or "native layers: every include points downward")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
