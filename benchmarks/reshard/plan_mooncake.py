"""Our plans beside those of mooncake.reshard, for the same placements. No bytes are moved.

    python -m benchmarks.reshard.plan_mooncake [--out build/reports]

mooncake.reshard plans data, tensor and pipeline parallel placements in one go for all ranks; so
ours are summed up over all target ranks. `apart` counts what all ranks are sent. `together` has
rank i of both sides in one process, where a copy from i to i is not sent; mooncake.reshard is not
told, as it has no way to be. Exit status 1 where ours would send more than theirs. Installs
mooncake-transfer-engine-non-cuda from PyPI into an environment of its own under build/peers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.baselines.peers.environments import make
from transport.cli import facts
from transport.cli.options import rounded
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate, Shard
from transport.sharding.places import Places
from transport.sharding.plan import plan
from transport.sharding.state import StateLayout

PACKAGES = ("mooncake-transfer-engine-non-cuda==0.3.13.post1", "numpy")
DRIVER = Path(__file__).parent / "drivers" / "plan_mooncake.py"
BUILD = Path(__file__).resolve().parents[2] / "build"
LAYERS, HIDDEN, WIDE = 8, 4096, 14336
CASES = [  # (dp, pp, tp) of the source and of the target
    ((1, 1, 8), (1, 1, 4)),
    ((1, 1, 4), (1, 1, 8)),
    ((2, 1, 4), (1, 1, 8)),
    ((4, 1, 2), (1, 1, 8)),
    ((1, 4, 2), (1, 1, 8)),
    ((2, 2, 2), (4, 1, 2)),
    ((8, 1, 1), (1, 1, 8)),
    ((8, 1, 1), (3, 1, 1)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=BUILD / "reports")
    out = parser.parse_args().out
    python = make(BUILD / "peers" / "mooncake-reshard", PACKAGES)
    rows = [row for sizes in CASES for row in compare(python, *sizes)]
    print(
        f"{'source':>16} {'target':>16} {'processes':>10} {'ours':>14} {'theirs':>14}"
        f" {'our busiest':>12} {'theirs':>12} {'our s':>8} {'theirs':>8}"
    )
    for row in rows:
        print(
            f"{row['source']:>16} {row['target']:>16} {row['processes']:>10} {row['bytes']:>14}"
            f" {row['their_bytes']:>14} {row['busiest']:>12} {row['their_busiest']:>12}"
            f" {row['plan_s']:>8.4f} {row['their_plan_s']:>8.4f}"
        )
    out.mkdir(parents=True, exist_ok=True)
    found = {
        "schema": "transport.plan-mooncake/1",
        "host": facts.host(),
        "peer": PACKAGES[0],
        "rows": rows,
    }
    (out / "plan_mooncake.json").write_text(json.dumps(rounded(found), indent=1) + "\n")
    if any(row["bytes"] > row["their_bytes"] for row in rows):
        sys.exit(1)


def compare(python, source_sizes, target_sizes):
    tensors = table()
    source, target = state(tensors, *source_sizes), state(tensors, *target_sizes)
    theirs = ask(python, tensors, (source, source_sizes), (target, target_sizes))
    ranks = [int(np.prod(sizes)) for sizes in (source_sizes, target_sizes)]
    copies = np.array(theirs["copies"])
    for processes in ("apart", "together"):
        places = {}
        sent = copies
        if processes == "together":
            places = {
                "source_places": Places(range(ranks[0])),
                "target_places": Places(range(ranks[1])),
            }
            sent = copies[copies[:, 0] != copies[:, 1]]
        begun = time.perf_counter()
        plans = [plan(source, target, rank, **places) for rank in range(ranks[1])]
        seconds = time.perf_counter() - begun
        busiest = np.zeros(ranks[0], np.int64)
        for one in plans:
            far = one.tier > 0
            np.add.at(busiest, one.source_rank[far], one.copy_bytes[far])
        yield {
            "source": "dp={},pp={},tp={}".format(*source_sizes),
            "target": "dp={},pp={},tp={}".format(*target_sizes),
            "processes": processes,
            "bytes": sum(one.nbytes for one in plans),
            "their_bytes": int(sent[:, 2].sum()),
            "busiest": int(busiest.max()),
            "their_busiest": int(np.bincount(sent[:, 0], sent[:, 2]).max(initial=0)),
            "copies": sum(len(one) for one in plans),
            "their_copies": theirs["regions"],
            "plan_s": seconds,
            "their_plan_s": theirs["seconds"],
        }


def table():
    """name -> shape, dimension that tensor parallelism cuts, layer; a small Llama."""
    found = {}
    for layer in range(LAYERS):
        found |= {
            f"layers.{layer}.qkv": ((3 * HIDDEN, HIDDEN), 0, layer),
            f"layers.{layer}.o": ((HIDDEN, HIDDEN), 1, layer),
            f"layers.{layer}.up": ((WIDE, HIDDEN), 0, layer),
            f"layers.{layer}.down": ((HIDDEN, WIDE), 1, layer),
            f"layers.{layer}.norm": ((HIDDEN,), None, layer),
        }
    return found


def state(tensors, dp, pp, tp):
    """Ranks are dp x pp x tp, tp innermost."""
    ranks = np.arange(dp * pp * tp).reshape(dp, pp, tp)
    made = {}
    for name, (shape, split, layer) in tensors.items():
        mesh = Mesh((dp, tp), ranks=ranks[:, layer * pp // LAYERS])
        cut = Replicate() if split is None else Shard(split)
        made[name] = Layout.placed(shape, "bfloat16", mesh, [Replicate(), cut])
    return StateLayout(made)


def ask(python, tensors, *sides):
    case = {"tensors": {n: [s, 2, split, layer] for n, (s, split, layer) in tensors.items()}}
    for name, (layouts, (dp, pp, tp)) in zip(("source", "target"), sides):
        boxes = []
        for tensor, entry in layouts.items():
            p = entry.layout.pieces()
            boxes += [
                [tensor, rank, low, size]
                for rank, low, size in zip(p.rank.tolist(), p.offset.tolist(), p.size.tolist())
            ]
        places = np.indices((dp, pp, tp)).reshape(3, -1).T.tolist()
        case[name] = {
            "sizes": {"dp": dp, "pp": pp, "tp": tp},
            "ranks": [dict(zip(("dp", "pp", "tp"), place)) for place in places],
            "boxes": boxes,
        }
    done = subprocess.run(
        [python, DRIVER], input=json.dumps(case), capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        sys.exit(f"mooncake.reshard refused the case:\n{done.stderr}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
