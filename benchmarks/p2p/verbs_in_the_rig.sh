#!/usr/bin/env bash
# Runs in the guest: our verbs provider, perftest and a pyverbs loop between the hosts b and a, one queue pair each, taking turns.
#
#   SHARE=DIR tests/rig/run.sh benchmarks/p2p/verbs_in_the_rig.sh [--rounds 7] [ROW...]
#
# In a guest with two CPUs a system call takes 5 us or 70 us, by how the host places the guest's processes. For figures that hold give
# the guest one CPU of the host; a ping-pong needs two:
#
#   NCPUS=1 SHARE=DIR taskset -c 1 tests/rig/run.sh benchmarks/p2p/verbs_in_the_rig.sh write-64k read-8 ...
#
# Prints one table of medians and writes verbs.json to SHARE. The status is 1 when a target is missed.
set -euo pipefail
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
cd "$root"
# shellcheck source=/dev/null
. tests/rig/two_hosts.sh
exec "${VENV:-$root/.venv}/bin/python" -m benchmarks.p2p.beside_perftest --json "${SHARE:-/tmp}/verbs.json" "$@"
