#!/bin/bash
# setup.sh: make this machine able to run the rig: the guest's packages (the guest sees the host's files, so they are installed on the
# host) and a guest kernel. Only what is missing is installed; under a second when nothing is.
set -euo pipefail
# shellcheck source=tests/rig/lib.sh
. "$(dirname "$(readlink -f "$0")")/lib.sh"

guest_packages=(rdma-core ibverbs-providers ibverbs-utils rdmacm-utils perftest python3-pyverbs iproute2 xz-utils iputils-ping)
build_packages=(flex bison bc libelf-dev libssl-dev gcc make xz-utils patch)

# missing PACKAGE...: print those that are not installed.
missing() {
  local have
  # dpkg-query fails when it does not know one of the names, which is what we are here to find out.
  have=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
  local p
  for p in "$@"; do grep -qx "installed $p" <<<"$have" || echo "$p"; done
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
}

# The lists may be absent or older than the archive, so a failed install is tried again after an update.
install_now() {
  local todo
  mapfile -t todo < <(missing "$@")
  [ ${#todo[@]} -gt 0 ] || return 0      # another process installed them while this one waited for the lock
  rig_note "installing ${todo[*]}"
  apt_install "${todo[@]}" && return 0
  apt-get update -q
  apt_install "${todo[@]}"
}

ensure() {
  local todo
  mapfile -t todo < <(missing "$@")
  [ ${#todo[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || rig_die "missing packages (Debian names): ${todo[*]}"
  [ "$(id -u)" = 0 ] || rig_die "not root, so run this first: sudo apt-get install ${todo[*]}"
  rig_locked apt install_now "$@" >&2 || rig_die "could not install ${todo[*]}"
  mapfile -t todo < <(missing "$@")
  [ ${#todo[@]} -eq 0 ] || rig_die "still missing after the installation: ${todo[*]}"
}

[ "$(uname -sm)" = "Linux x86_64" ] || rig_die "the rig needs Linux on x86-64; this is $(uname -sm)"
command -v dpkg-query >/dev/null || rig_die "the rig installs Debian packages; without dpkg, install ${guest_packages[*]} by hand and use run.sh"
ensure "${guest_packages[@]}"
if ! kernel=$(rig_kernel); then
  [ -z "${RIG_KERNEL:-}" ] || exit 125    # rig_kernel said why
  ensure "${build_packages[@]}"
  rig_note "no guest kernel yet: building one (about 7 minutes on 2 cores)"
  kernel=$("$rig_dir/build.sh")
fi
rig_note "ready, kernel $kernel"
