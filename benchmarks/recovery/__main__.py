"""Recovery without a checkpoint, as JSON on stdout; `--quick` is one round of each.

python -m benchmarks.recovery [--quick] [--ranks 8] [--mb 90] [--only actors|transports]
"""

from __future__ import annotations

import argparse
import json
import os
import platform

from benchmarks.recovery import actors, transports


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--mb", type=int, default=90)
    parser.add_argument("--only", choices=("actors", "transports"))
    arguments = parser.parse_args()
    found = {"machine": {"cpus": os.cpu_count(), "kernel": platform.release()}}
    found["mb"], rounds = arguments.mb, 1 if arguments.quick else 3
    if arguments.only != "transports":
        found["ranks"] = arguments.ranks
        found["actors"] = actors.measure(arguments.ranks, arguments.mb, rounds)
    if arguments.only != "actors":
        found["transports"] = transports.measure(arguments.mb, 2 * rounds + 1)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
