#!/usr/bin/env bash
# Makes two hosts out of network namespaces, joined by a veth pair, and compares tcp with iperf3 and bare sockets between them.
#
#   benchmarks/p2p/tcp_between_hosts.sh [--netem "delay 20ms loss 0.1%"] [ARGUMENTS OF benchmarks.p2p.tcp_limit]
#   SHARE=DIR tests/rig/run.sh benchmarks/p2p/tcp_between_hosts.sh --netem "delay 20ms"     where the kernel has no netem
#
# What --netem says happens to the packets of the end that sends data. Needs root.
set -euo pipefail
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
cd "$root"
netem=
if [[ ${1:-} == --netem ]]; then
  netem=$2
  shift 2
fi
near=tcp-near-$$ far=tcp-far-$$
cleanup() { ip netns del "$near" 2>/dev/null; ip netns del "$far" 2>/dev/null; }
trap cleanup EXIT
for host in "$near" "$far"; do
  ip netns add "$host"
  ip -n "$host" link set lo up
done
ip link add tcp0 netns "$near" type veth peer name tcp0 netns "$far"
ip -n "$near" addr add 10.77.0.1/24 dev tcp0
ip -n "$far" addr add 10.77.0.2/24 dev tcp0
ip -n "$near" link set tcp0 up
ip -n "$far" link set tcp0 up
if [[ -n $netem ]]; then
  # shellcheck disable=SC2086
  ip netns exec "$near" tc qdisc add dev tcp0 root netem limit 100000 $netem
fi
ip netns exec "$near" "${VENV:-$root/.venv}/bin/python" -m benchmarks.p2p.tcp_limit --address 10.77.0.2 --far "ip netns exec $far" "$@"
