#!/bin/bash
# shell.sh: a root shell in the guest, with the hosts of two_hosts.sh set up, on this terminal.
# When stdin is not a terminal, the commands on stdin are run instead and their status is returned:
#   echo 'perftest_pair ib_read_bw -s 65536 -n 1000' | tests/rig/shell.sh
# Environment as for run.sh. On a terminal there is no time limit, and the window's size is the one it has at the start.
set -euo pipefail
# shellcheck source=tests/rig/lib.sh
. "$(dirname "$(readlink -f "$0")")/lib.sh"

"$rig_dir/setup.sh"
if [ -t 0 ]; then
  exec "$rig_dir/run.sh" --tty "$rig_dir/guest_shell.sh"
fi
RIG_COMMANDS=$(cat)
export RIG_COMMANDS
exec "$rig_dir/run.sh" "$rig_dir/guest_shell.sh"
