#!/usr/bin/env bash
# Runs in the guest (SHARE=DIR tests/rig/run.sh benchmarks/p2p/verbs_in_the_rig.sh): 1 MiB writes from host b to host a, our verbs
# provider and perftest's ib_write_bw taking turns, one queue pair each. Prints the medians and their ratio; writes verbs.json to SHARE.
#   RIG_ROUNDS=9 RIG_MESSAGES=320
set -euo pipefail
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
cd "$root"
# shellcheck source=/dev/null
. tests/rig/two_hosts.sh
# shellcheck source=/dev/null
. tests/rig/perftest.sh
rounds=${RIG_ROUNDS:-9} messages=${RIG_MESSAGES:-320}
python=${VENV:-$root/.venv}/bin/python
work=$(mktemp -d)
TRANSPORT_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export TRANSPORT_SECRET

ip netns exec a "$python" -m transport bench serve --listen 10.8.0.1:7777 --bytes 1MiB --memory private >"$work/address" &
server=$!
for ((i = 0; i < 600; i++)); do
  grep -q 10.8.0.1 "$work/address" && break
  kill -0 "$server" || exit 1
  sleep 0.1
done

coproc ours { ip netns exec b "$python" -m benchmarks.p2p.verbs_side 10.8.0.1:7777 "$messages"; }
one_of_ours() {
  echo go >&"${ours[1]}"
  read -r -t 120 line <&"${ours[0]}" && echo "$line" | tee -a "$work/ours"
}
one_of_ours >/dev/null
: >"$work/ours"
for ((round = 0; round < rounds; round++)); do
  perftest_pair ib_write_bw -s 1048576 -n "$messages" -q 1 | tee -a "$work/theirs"
  one_of_ours
done
# shellcheck disable=SC2154 # set by coproc
pid=$ours_PID to=${ours[1]}
exec {to}>&-
wait "$pid"
kill "$server"
wait "$server" || true

"$python" - "$work" "${SHARE:-$work}/verbs.json" <<'END'
import json
import statistics
import sys
from pathlib import Path

from transport.cli import facts

work, out = Path(sys.argv[1]), Path(sys.argv[2])
ours = [json.loads(line) for line in (work / "ours").read_text().splitlines()]
theirs = [json.loads(line) for line in (work / "theirs").read_text().splitlines()]
a = statistics.median(row["gb_per_s"] for row in ours)
b = statistics.median(row["gb_per_s_avg"] for row in theirs)
assert all(row["verified"] for row in ours)
result = {"schema": 1, "host": facts.host(), "ratio": a / b, "ours_gb_per_s": a, "ib_write_bw_gb_per_s": b,
          "ours": ours, "ib_write_bw": theirs}
out.write_text(json.dumps(result, indent=1) + "\n")
print(f"verbs, 1 MiB writes, 1 queue pair: {a / b:.3f} of ib_write_bw ({a:.3f} and {b:.3f} GB/s, medians of {len(ours)})")
sys.exit(0 if a / b >= 0.8 else 1)
END
