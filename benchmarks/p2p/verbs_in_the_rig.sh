#!/usr/bin/env bash
# Runs in the guest: our verbs provider, perftest and a pyverbs loop between the hosts b and a, one queue pair each, taking turns.
#
#   SHARE=DIR tests/rig/run.sh benchmarks/p2p/verbs_in_the_rig.sh [--rounds 7] [ROW...]
#
# Prints one table of medians and writes verbs.json to SHARE. The status is 1 when a target is missed.
set -euo pipefail
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
cd "$root"
# shellcheck source=/dev/null
. tests/rig/two_hosts.sh
exec "${VENV:-$root/.venv}/bin/python" -m benchmarks.p2p.beside_perftest --json "${SHARE:-/tmp}/verbs.json" "$@"
