"""An environment for each library, from PyPI, made once under build/peers/.

Never the project's own: several of them bring their own copies of UCX, of CUDA or of torch. What
cannot be had here is a reason, not an error.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.baselines.peers.conductor import DRIVERS, Command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.baselines.peers.ways import Library

_INSTALL = 900.0  # seconds
_COMPILE = 60.0
_WORDS = 120  # characters of a command that failed


class Missing(Exception):
    """A library cannot be driven here; the message is the reason."""


def command(library: Library, folder: Path, *, install: bool) -> Command:
    """How its driver is started. Without `install` only what this interpreter has is used."""
    driver = DRIVERS / library.driver
    if not library.packages:
        return Command(sys.executable, driver)
    if not install:
        if library.module is None or importlib.util.find_spec(library.module) is None:
            raise Missing(f"{library.packages[0]} is not installed in this environment")
        return Command(sys.executable, driver)
    return Command(str(make(folder / library.name, library.packages, library.unbundled)), driver)


def make(folder: Path, packages: Sequence[str], unbundled: bool = False) -> Path:
    """The interpreter of a virtual environment with just these packages."""
    python, stamp = folder / "bin" / "python", folder / ".packages"
    wanted = "\n".join(packages)
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    _do([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], _INSTALL)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    options = ["--quiet", *(["--no-deps"] if unbundled else [])]
    _do([*pip, "install", *options, *packages], _INSTALL)
    stamp.write_text(wanted)
    return python


def ucx_library(environment: Path) -> Path:
    """Compiles ucx_put.c against the wheel in this environment; needs a C compiler called cc."""
    source, built = DRIVERS / "ucx_put.c", environment / "libucx_put.so"
    if built.exists() and built.stat().st_mtime >= source.stat().st_mtime:
        return built
    found = next(environment.glob("lib/python*/site-packages/libucx"), None)
    if found is None:
        raise Missing(f"{environment} has no libucx")
    lib = found / "lib"
    libraries = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lucp", "-lucs", "-luct", "-lucm"]
    build(source, built, f"-I{found / 'include'}", *libraries)
    return built


def build(source: Path, built: Path, *options: str) -> None:
    """A shared library of one C file; needs a C compiler called cc."""
    flags = ["-std=gnu11", "-O2", "-shared", "-fPIC"]
    _do(["cc", *flags, "-o", str(built), str(source), *options], _COMPILE)


def _do(words: Sequence[str], seconds: float) -> None:
    what = " ".join(words)[:_WORDS]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds)
    except OSError as error:
        raise Missing(f"{words[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise Missing(f"`{what}` took over {seconds:g} s") from None
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        last = next((line for line in said if "error" in line.lower()), said[-1] if said else "")
        raise Missing(f"`{what}`: {last.strip()}")
