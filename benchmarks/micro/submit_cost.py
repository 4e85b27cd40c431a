"""What our own code costs per descriptor of a batch of 10,000 that touch nowhere, as JSON.

python -m benchmarks.micro.submit_cost [--rounds N]          (or: make submit-cost)

Nanoseconds are medians of CLOCK_MONOTONIC over the rounds, of a program that is built here as the
shipped module is (native/bench/bench_submit.c); its device is the double of libibverbs, whose post
and poll are replaced by ones that do next to nothing. Instructions are what callgrind counts in the
same stages, in all and by source file.

- make: check and copy (tn_prepare)
- next: hand out pieces (tn_transfer_next)
- whole: from tn_submit to the end of tn_transfer_wait: both, work requests and completions
- prepared: the whole without `make`
- small: a prepared write of 8 bytes, run and waited for, whose completion is found at the 21st look
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.micro.programs import build, instructions, run

_PROGRAM = "bench_submit"
_CALLGRIND_ROUNDS = 4


def measure(rounds: int) -> dict[str, Any]:
    """All stages; builds the program first."""
    build()
    report: dict[str, Any] = json.loads(run(_PROGRAM, str(rounds)))
    for stage, found in report["per_descriptor"].items():
        counts = instructions(_PROGRAM, str(_CALLGRIND_ROUNDS), stage, collect_in=f"stage_{stage}")
        runs = report["descriptors"] * (_CALLGRIND_ROUNDS + 1)  # and one to warm up
        found["instructions"] = round(sum(counts.values()) / runs, 1)
        found["by_file"] = {
            name: round(count / runs, 1)
            for name, count in counts.most_common()
            if count / runs >= 1
        }
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=101)
    print(json.dumps(measure(parser.parse_args().rounds), indent=2))


if __name__ == "__main__":
    main()
