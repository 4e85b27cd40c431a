# shellcheck shell=bash
# Source in the guest. Makes hosts out of network namespaces, each with its own Soft-RoCE devices:
#
#   a    rxe_a 10.8.0.1     two hosts, joined by a veth pair
#   b    rxe_b 10.8.0.2
#   c    rxe_c0 10.8.1.1    one host with two NICs: processes on it talk through one device (loopback) or from one to the other
#        rxe_c1 10.8.1.2
#
# ip netns exec a COMMAND runs COMMAND on host a. GID index 1 of each device is RoCE v2 with its IPv4 address.
# Sourcing it twice is harmless.

rig_mtu=4200     # gives an RDMA path MTU of 4096; the usual 1500 gives 1024, and everything is slower

# rig_host_device HOST: the device and the address that perftest_pair and the like use for it.
rig_host_device() { case $1 in c) echo rxe_c0 ;; *) echo "rxe_$1" ;; esac; }
rig_host_address() { case $1 in a) echo 10.8.0.1 ;; b) echo 10.8.0.2 ;; c) echo 10.8.1.1 ;; esac; }

rig_add_host() { ip netns add "$1"; ip -n "$1" link set lo up; }

# rig_add_nic HOST INTERFACE ADDRESS DEVICE. The interface is up before the device is made, so that its GIDs are complete.
rig_add_nic() {
  ip -n "$1" link set "$2" mtu "$rig_mtu" up
  ip -n "$1" addr add "$3/24" dev "$2"
}
rig_add_rxe() { ip netns exec "$1" rdma link add "$3" type rxe netdev "$2"; }

# Two addresses of one host on a wire between them: the kernel must accept packets that come in with its own address as their source,
# or what rxe_c0 sends to rxe_c1 is dropped as forged.
rig_accept_own_source() {
  ip netns exec "$1" sysctl -qw net.ipv4.conf.all.accept_local=1 net.ipv4.conf.all.rp_filter=0 \
    "net.ipv4.conf.$2.accept_local=1" "net.ipv4.conf.$3.accept_local=1" "net.ipv4.conf.$2.rp_filter=0" "net.ipv4.conf.$3.rp_filter=0"
}

# rig_wait_device HOST DEVICE: until its port is active and GID 1 is there (the kernel fills the table from a work queue).
rig_wait_device() {
  # shellcheck disable=SC2016
  ip netns exec "$1" bash -c '
    port=/sys/class/infiniband/$1/ports/1
    for ((i = 0; i < 1200; i++)); do
      case $(<$port/state):$(<$port/gids/1) in 4:*:0000:0000:0000:0000) ;; 4:*:ffff:*) exit 0 ;; esac
      sleep 0.05
    done
    echo "rig: $1 has no active port with an IPv4 GID" >&2
    exit 1' rig_wait "$2" 2>&1
}

rig_two_hosts() {
  if ip netns list | grep -q '^a\b'; then return 0; fi
  # Before the first namespace, or it is refused. From here on a device is seen in its own namespace only.
  rdma system set netns exclusive || return
  local host
  for host in a b c; do rig_add_host "$host"; done
  ip link add va netns a type veth peer name vb netns b
  ip link add vc0 netns c type veth peer name vc1 netns c
  rig_accept_own_source c vc0 vc1
  rig_add_nic a va 10.8.0.1
  rig_add_nic b vb 10.8.0.2
  rig_add_nic c vc0 10.8.1.1
  rig_add_nic c vc1 10.8.1.2
  rig_add_rxe a va rxe_a
  rig_add_rxe b vb rxe_b
  rig_add_rxe c vc0 rxe_c0
  rig_add_rxe c vc1 rxe_c1
  rig_wait_device a rxe_a && rig_wait_device b rxe_b && rig_wait_device c rxe_c0 && rig_wait_device c rxe_c1
}

rig_two_hosts
