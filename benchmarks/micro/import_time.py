"""How long `import transport` takes beyond a bare interpreter, and what it drags in.

python -m benchmarks.micro.import_time [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

FORBIDDEN = ("torch", "numpy", "click", "asyncio")
_PROBE = f"import sys, transport; print(*(n for n in {FORBIDDEN!r} if n in sys.modules))"


@dataclass(frozen=True)
class ImportTime:
    """Medians in milliseconds."""

    bare_ms: float
    with_transport_ms: float
    extra_ms: float
    dragged_in: tuple[str, ...]


def _run_ms(code: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - begin) * 1e3


def measure(rounds: int = 15) -> ImportTime:
    """The two kinds of run alternate; byte code is warm."""
    bare, loaded = [], []
    _run_ms("import transport")
    for _ in range(rounds):
        bare.append(_run_ms("pass"))
        loaded.append(_run_ms("import transport"))
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE], check=True, capture_output=True, text=True
    )
    a, b = statistics.median(bare), statistics.median(loaded)
    return ImportTime(a, b, b - a, tuple(probe.stdout.split()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps(asdict(found)))
    else:
        names = ", ".join(found.dragged_in) or "none"
        print(f"bare interpreter      {found.bare_ms:7.1f} ms")
        print(f"with import transport {found.with_transport_ms:7.1f} ms")
        print(f"difference            {found.extra_ms:7.1f} ms")
        print(f"imported of {FORBIDDEN}: {names}")


if __name__ == "__main__":
    main()
