"""Describes the extension `transport.ffi._native` to setuptools.

Duty: collect the C sources and the cdefs, choose the flags. Runs from the root of the tree, at
build time only; needs cffi and a C compiler, and no header that libc does not bring.
"""

from __future__ import annotations

import os
import platform
import runpy
from pathlib import Path

from cffi import FFI

# Later rooms use earlier rooms' types. A room without a cdef is not bound yet.
ROOMS = [
    *("base", "memory", "engine", "shm", "verbs"),
    *("gpu", "gpu_ipc", "staged", "device", "nccl", "board"),
]

# Built by native/Makefile only: doubles of foreign libraries, test programs, fuzz targets.
NOT_SHIPPED = {"fakes", "tests", "fuzz", "bench"}

FLAGS = [
    "-std=gnu11",
    "-O2",
    "-fvisibility=hidden",
    "-pthread",
    # Older compilers only warn about these. A cdef that disagrees with its header shows up as one
    # of the first two; the third truncates returned pointers.
    "-Werror=int-conversion",
    "-Werror=incompatible-pointer-types",
    "-Werror=implicit-function-declaration",
]

# For developers and CI, never the default: a newer compiler's new warning must not break a user's
# install. What cffi's generated file does not pass (-Wconversion, -Wmissing-prototypes) is left to
# native/Makefile, which compiles our files alone.
STRICT = "-Wall -Wextra -Wshadow -Wvla -Wpointer-arith -Wstrict-prototypes -Werror"

SANITIZERS = {"address", "undefined", "thread"}


def rooms_cdef() -> str:
    """The concatenated `bindings/<room>.cdef.h` files in ROOMS order."""
    files = [Path(f"bindings/{room}.cdef.h") for room in ROOMS]
    forgotten = {str(p) for p in Path("bindings").glob("*.cdef.h")} - {str(p) for p in files}
    if forgotten:
        raise SystemExit(f"bindings/build.py: not in ROOMS: {sorted(forgotten)}")
    return "\n".join(path.read_text() for path in files if path.exists())


def c_files(suffix: str) -> list[str]:
    """Sources or headers under native/, without what only developers build."""
    found = (p for p in Path("native").rglob(f"*{suffix}") if not NOT_SHIPPED & set(p.parts))
    return sorted(str(p) for p in found)


def sanitizer_flags() -> list[str]:
    """Flags for TRANSPORT_SANITIZE=address|undefined|thread (comma-separated), for both steps."""
    chosen = [name for name in os.environ.get("TRANSPORT_SANITIZE", "").split(",") if name]
    unknown = set(chosen) - SANITIZERS
    if unknown:
        raise SystemExit(f"TRANSPORT_SANITIZE: unknown {sorted(unknown)}; use {sorted(SANITIZERS)}")
    if not chosen:
        return []
    return [f"-fsanitize={','.join(chosen)}", "-g", "-fno-omit-frame-pointer"]


def compile_flags() -> list[str]:
    """FLAGS plus what the environment asks for."""
    strict = STRICT.split() if os.environ.get("TRANSPORT_WERROR") == "1" else []
    floor = ["-include", "bindings/glibc_floor.h"] if NEEDS_FLOOR else []
    return [*FLAGS, *strict, *floor, *sanitizer_flags()]


def link_flags() -> list[str]:
    """What the linker is told; the wraps lead to bindings/glibc_floor.c."""
    wraps = [f"-Wl,--wrap={name}" for name in ("fstat", "stat", "lstat", "fstatat")]
    return ["-pthread", *(wraps if NEEDS_FLOOR else []), *sanitizer_flags()]


# Keeps the wheel loadable on older distributions than the one it is built on: see
# bindings/glibc_floor.h. Not under a sanitizer, which must intercept the plain names.
NEEDS_FLOOR = platform.libc_ver()[0] == "glibc" and not sanitizer_flags()

# What the module says it was built from; not imported, for the package needs the module.
INTERFACE: int = runpy.run_path("transport/ffi/interface.py")["number"](Path())

ffibuilder = FFI()
ffibuilder.cdef(rooms_cdef() + "\n#define TN_INTERFACE ...\n")
ffibuilder.set_source(
    "transport.ffi._native",
    f'#include "transport_native.h"\n#define TN_INTERFACE {INTERFACE:#x}u',
    sources=[*c_files(".c"), *(["bindings/glibc_floor.c"] if NEEDS_FLOOR else [])],
    # Rebuilds when one changes, and carries them in the sdist.
    depends=[*c_files(".h"), *sorted(str(p) for p in Path("bindings").iterdir() if p.is_file())],
    include_dirs=["native/include", "native"],
    libraries=["dl"],  # a stub since glibc 2.34, needed before
    extra_compile_args=compile_flags(),
    extra_link_args=link_flags(),
)
