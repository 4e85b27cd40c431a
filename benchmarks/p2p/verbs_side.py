"""One end of verbs_in_the_rig.sh: for every line on stdin, one measured run of 1 MiB writes.

python -m benchmarks.p2p.verbs_side ADDRESS MESSAGES

ib_write_bw keeps up to 128 writes under way all the time. Here a submission has 64, and the next
begins when all of them are done. All go to and from the same 1 MiB, as ib_write_bw's do.
"""

from __future__ import annotations

import json
import sys

from transport.cli.bench_p2p import Plan, Side, measure_size
from transport.cli.bench_side import open_engine

SIZE = 1 << 20
BATCH = 64


def main() -> None:
    address, messages = sys.argv[1], int(sys.argv[2])
    plan = Plan("write", (SIZE,), BATCH, "verbs", "private", max(1, messages // BATCH))
    with open_engine("rig", "verbs") as engine:
        side = Side.open(engine, engine.connect(address), plan)
        for _ in sys.stdin:
            row = measure_size(side, plan, SIZE)
            facts = {"path": row.path, "p50_us": row.p50_us, "verified": row.verified}
            print(json.dumps({"gb_per_s": row.gb_per_s_avg, **facts}), flush=True)


if __name__ == "__main__":
    main()
