# shellcheck shell=bash
# Sourced by the host-side scripts: where the guest kernel lies and how it gets there.
# Nothing here runs in the guest.

rig_dir=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
rig_checkout=$(readlink -f "$rig_dir/../..")
rig_cache=${XDG_CACHE_HOME:-$HOME/.cache}/tensor-transport/rig
rig_prebuilt=$(dirname "$rig_checkout")/shared/rig

rig_note() { printf 'rig: %s\n' "$*" >&2; }
rig_die() { rig_note "$*"; exit 125; }

# rig_locked NAME COMMAND...: run COMMAND while holding the lock NAME, so that parallel test runs do the work once.
# The lock must not leak into daemons or guests that COMMAND starts, hence 9>&-.
rig_locked() {
  local name=$1; shift
  mkdir -p "$rig_cache"
  ( flock 9; "$@" 9>&- ) 9>"$rig_cache/$name.lock"
}

# A kernel built here is named after what it was built from: a changed patch or configuration is never served from the cache.
rig_recipe() { cat "$rig_dir"/kernel.{config,patch} | sha256sum | cut -c1-12; }
rig_built_path() { echo "$rig_cache/linux-built-$(rig_recipe)"; }

rig_prebuilt_sum() { awk '$2 ~ /^\*?linux\.xz$/ { print $1; exit }' "$rig_prebuilt/SHA256SUMS"; }
rig_has_prebuilt() { [ -f "$rig_prebuilt/linux.xz" ] && [ -f "$rig_prebuilt/SHA256SUMS" ]; }

# rig_unpack_prebuilt TARGET: checked before it is unpacked, and renamed into place whole.
rig_unpack_prebuilt() {
  local target=$1 sum tmp
  [ -x "$target" ] && return 0
  sum=$(rig_prebuilt_sum)
  echo "$sum  $rig_prebuilt/linux.xz" | sha256sum --check --status || rig_die "$rig_prebuilt/linux.xz does not match its SHA256SUMS"
  command -v xz >/dev/null || rig_die "xz is missing: run tests/rig/setup.sh"
  tmp=$(mktemp "$target.XXXXXX")
  xz -dc "$rig_prebuilt/linux.xz" >"$tmp" && chmod 755 "$tmp" && mv "$tmp" "$target"
}

# rig_kernel: print the path of a kernel that is ready to boot (unpacking a prebuilt one if need be); status 1: one must be built.
rig_kernel() {
  local target
  if [ -n "${RIG_KERNEL:-}" ]; then
    [ -x "$RIG_KERNEL" ] || rig_die "RIG_KERNEL=$RIG_KERNEL is not an executable"
    readlink -f "$RIG_KERNEL"; return
  fi
  target=$(rig_built_path)
  [ -x "$target" ] && { echo "$target"; return; }
  if rig_has_prebuilt; then
    target=$rig_cache/linux-prebuilt-$(rig_prebuilt_sum | cut -c1-12)
    [ -x "$target" ] || rig_locked kernel rig_unpack_prebuilt "$target" || return 125
    echo "$target"; return
  fi
  # The prebuilt may have been unpacked by a checkout that had it beside it.
  target=$(find "$rig_cache" -maxdepth 1 -name 'linux-prebuilt-????????????' -printf '%T@ %p\n' 2>/dev/null | sort -n | tail -1 | cut -d' ' -f2-)
  [ -n "$target" ] && echo "$target"
}
