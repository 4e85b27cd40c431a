#!/bin/bash
# build.sh: build the guest kernel into the cache: User-Mode Linux with Soft-RoCE and siw. About 7 minutes on 2 cores, 2.5 GB of disk
# (given back at the end). Prints the kernel's path. Does nothing when this recipe has been built before.
#
# The source is Debian's linux-source package. It comes from the unstable suite, read through a private apt configuration made from the
# address of the system's own Debian source, and it is unpacked without being installed: the system's sources and packages stay as they
# are. RIG_LINUX_SOURCE=/path/to/linux-source-X.Y.tar.xz uses a tarball of that package instead (no network, any distribution).
# Needs: flex bison bc libelf-dev libssl-dev gcc make xz-utils patch (setup.sh installs them).
set -euo pipefail
# shellcheck source=tests/rig/lib.sh
. "$(dirname "$(readlink -f "$0")")/lib.sh"

series=7.2
version=7.2.13-1
work=$rig_cache/build

[ "$(uname -m)" = x86_64 ] || rig_die "the guest kernel is built for x86-64 only; this is $(uname -m)"

debian_uri() {
  local uri=
  if [ -f /etc/apt/sources.list.d/debian.sources ]; then
    uri=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources)
  fi
  if [ -z "$uri" ] && [ -f /etc/apt/sources.list ]; then
    uri=$(awk '$1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /:\/\//) { print $i; exit } }' /etc/apt/sources.list)
  fi
  [ -n "$uri" ] || rig_die "no Debian source found in /etc/apt: set RIG_LINUX_SOURCE to a linux-source tarball"
  echo "$uri"
}

# fetch_source: leave the source tarball's path in $tarball.
fetch_source() {
  if [ -n "${RIG_LINUX_SOURCE:-}" ]; then tarball=$(readlink -f "$RIG_LINUX_SOURCE"); return; fi
  local apt=(apt-get -q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/parts"
             -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work" -o APT::Sandbox::User=root)
  mkdir -p "$work"/{lists/partial,archives/partial,parts,debs}
  printf 'Types: deb\nURIs: %s\nSuites: sid\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
    "$(debian_uri)" >"$work/parts/source.sources"
  "${apt[@]}" update
  ( cd "$work/debs"
    # The suite moves on: the pinned version first, then whatever it has of the same series (the patch is made for the series).
    "${apt[@]}" download "linux-source-$series=$version" || "${apt[@]}" download "linux-source-$series" )
  dpkg-deb -x "$work"/debs/linux-source-"$series"_*.deb "$work/unpacked"
  tarball=$work/unpacked/usr/src/linux-source-$series.tar.xz
}

unpack_source() {
  mkdir -p "$work/src"
  tar -xf "$tarball" -C "$work/src" --strip-components=1
  patch -s -d "$work/src" -p1 <"$rig_dir/kernel.patch"
}

compile() {
  local make=(make -s -C "$work/src" "O=$work/out" ARCH=um SUBARCH=x86_64)
  mkdir -p "$work/out"
  cp "$rig_dir/kernel.config" "$work/out/.config"
  "${make[@]}" olddefconfig
  "${make[@]}" "-j$(nproc)" linux
}

install_kernel() {
  strip -o "$work/linux" "$work/out/linux"
  mv "$work/linux" "$target"
}

build() {
  [ -x "$target" ] && return 0     # another process built it while this one waited for the lock
  rm -rf "$work"
  fetch_source
  unpack_source
  compile
  install_kernel
  rm -rf "$work"
}

target=$(rig_built_path)
# "|| exit" must not be used here: it would switch off -e inside build.
rig_locked build build >&2
echo "$target"
