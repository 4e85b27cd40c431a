"""Planning at the size of clusters: published models between published ways to spread them.

    python -m benchmarks.reshard.plan_scale [--only NAME] [--out build/reports]

For each case a process of its own plans for one rank, first thing (`rank_plan_s`: with the tables
of all layouts and the digests that a first plan needs; `tables_s` of it are these), and tells how
much memory that took. Then the traffic of all ranks is added up from their plans, or, where these
are very many, from what the planner has agreed on (`bytes_from`; it misses the rounding of cuts).
Run it on a quiet machine: the first plan happens once and takes a third of a second.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from transport.cli import facts
from transport.cli.options import rounded
from transport.sharding.models import published, recast
from transport.sharding.parallelism import Parallelism
from transport.sharding.plan import plan
from transport.sharding.planner import Planner
from transport.sharding.rules import named, sharded
from transport.sharding.traffic import least_busiest, lower_bound, traffic

BUILD = Path(__file__).resolve().parents[2] / "build"
MANY = 1024  # target ranks
CASES = [  # model, source, target
    ("deepseek-v3", "fsdp=1024,ep=64", "dp=32,tp=8,ep=256"),
    ("deepseek-v3", "dp=8,fsdp=128,ep=64", "dp=32,tp=8,ep=256"),
    ("kimi-k2", "fsdp=1024,ep=64", "dp=32,tp=8,ep=128"),
    ("kimi-k2", "dp=4,fsdp=1024,ep=128", "dp=256,tp=8,ep=128"),
    ("llama-3-405b", "fsdp=1024", "dp=32,tp=8"),
    ("llama-3-405b", "fsdp=4096", "pp=16,dp=16,tp=8"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases in whose name this is")
    parser.add_argument("--out", type=Path, default=BUILD / "reports")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(measure(*CASES[arguments.case])))
        return
    rows = []
    for number, case in enumerate(CASES):
        if arguments.only in " ".join(case):
            words = [sys.executable, "-m", __spec__.name, "--case", str(number)]
            rows.append(json.loads(subprocess.check_output(words, timeout=300)))
            print(text(rows[-1]), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = {"schema": "transport.plan-scale/1", "host": facts.host(), "rows": rows}
    (arguments.out / "plan_scale.json").write_text(json.dumps(rounded(result), indent=1) + "\n")


def measure(model, source_words, target_words):
    found = published(model)
    table = recast(found.tensors(), "bfloat16")
    rules = named(found.kv_heads)
    source, target = (
        sharded(table, Parallelism.parse(words), rules) for words in (source_words, target_words)
    )
    before = peak()
    begun = time.perf_counter()
    for state in (source, target):
        for layout in state.layouts:
            _ = layout.table
        _ = state.key
    tables = time.perf_counter() - begun
    one = plan(source, target, 0)
    seconds = time.perf_counter() - begun
    grown = peak() - before
    begun = time.perf_counter()
    plan(source, target, 1)
    again = time.perf_counter() - begun
    return {
        "model": model,
        "source": source_words,
        "target": target_words,
        "tensors": len(table),
        "layouts": [len(source.layouts), len(target.layouts)],
        "rank_plan_s": seconds,
        "tables_s": tables,
        "next_rank_plan_s": again,
        "rank_plan_peak_bytes": grown,
        "rank_copies": len(one),
        "rank_bytes": one.nbytes,
        **cluster(source, target),
    }


def cluster(source, target):
    if len(target.ranks) <= MANY:
        total = traffic(source, target)
        sent, least, bound = total.sent_by.nbytes, total.least_busiest, total.lower_bound
    else:
        lines = Planner(source, target, None, None).lines
        sent, least, bound = lines.sent, least_busiest(lines), lower_bound(source, target)
    return {
        "bytes_from": "plans" if len(target.ranks) <= MANY else "lines",
        "bytes": int(sent.sum()),
        "lower_bound_bytes": bound,
        "busiest_bytes": int(sent.max()),
        "imbalance": float(sent.max() / least),
        "max_over_mean": float(sent.max() / sent.mean()),
    }


def peak() -> int:
    """Bytes: the most that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def text(row) -> str:
    return (
        f"{row['model']} {row['source']} -> {row['target']}: {row['tensors']} tensors, one rank in "
        f"{row['rank_plan_s']:.3f} s and {row['rank_plan_peak_bytes'] / 1e6:.0f} MB "
        f"({row['rank_copies']} copies), the next in {row['next_rank_plan_s']:.3f} s; "
        f"{row['bytes']} bytes, bound {row['lower_bound_bytes']}; imbalance {row['imbalance']:.4f},"
        f" max/mean {row['max_over_mean']:.4f}"
    )


if __name__ == "__main__":
    main()
