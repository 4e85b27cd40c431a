#!/bin/bash
# Runs in the guest (shell.sh boots it): a shell with the hosts of two_hosts.sh and with perftest_pair, or the commands in RIG_COMMANDS.
rig=$(dirname "$(readlink -f "$0")")
# shellcheck source=tests/rig/two_hosts.sh
. "$rig/two_hosts.sh" || exit 125
# shellcheck source=tests/rig/perftest.sh
. "$rig/perftest.sh"

PATH=$rig/../../.venv/bin:$PATH   # for `transport`

if [ -n "${RIG_COMMANDS+set}" ]; then
  printf '%s\n' "$RIG_COMMANDS" >/run/commands
  # Sourced, so that the commands have perftest_pair.
  # shellcheck disable=SC1091
  . /run/commands
  exit
fi

cat <<'TEXT'
Hosts (network namespaces): a 10.8.0.1 rxe_a   b 10.8.0.2 rxe_b   c 10.8.1.1 rxe_c0, 10.8.1.2 rxe_c1
  ip netns exec a ibv_devinfo            perftest_pair ib_write_bw -s 65536 -n 2000
  tc -n a qdisc add dev va root netem loss 1%
Files are this machine's own; what you write vanishes (except under SHARE). Leave with exit or Ctrl-D.
TEXT
rc=$(mktemp)
printf '. /etc/bash.bashrc 2>/dev/null\n. %q\n. %q\nPS1="guest:\\w# "\n' "$rig/two_hosts.sh" "$rig/perftest.sh" >"$rc"
exec bash --rcfile "$rc" -i
