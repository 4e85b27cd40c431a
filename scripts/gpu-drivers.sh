#!/usr/bin/env bash
# Unpacks real GPU drivers from Debian's packages, without installing them, for tests that open them where
# there is no GPU: libcuda1 (non-free), libamdhip64-5 with what it needs, and HIP's headers. Some 22 MB, once.
#   scripts/gpu-drivers.sh [FOLDER]       build/gpu-drivers
# What cannot be had is no failure here: the tests that need it skip, and say so.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
folder=$PWD/${1:-build/gpu-drivers}
packages=(libcuda1 libamdhip64-5 libamd-comgr2 libhsakmt1 libhsa-runtime64-1 libamdhip64-dev)
[[ -f $folder/.done ]] && exit 0
# Where there is no archive, each try takes its time: one a day will do.
[[ -n $(find "$folder/.absent" -mmin -1440 2>/dev/null) ]] && exit 0

skip() {
    echo "gpu-drivers.sh: no real drivers to test with: $*" >&2
    mkdir -p "$folder" && touch "$folder/.absent"
    exit 0
}
[[ $(uname -m) == x86_64 ]] || skip "packages are for x86-64"
command -v apt-get dpkg-deb >/dev/null || skip "this is not a Debian-like system"
sources=/etc/apt/sources.list.d/debian.sources
[[ -f $sources ]] || skip "$sources is not there"

# A configuration of our own: nothing of the system's package lists changes, and root is not needed.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{sources,lists/partial,cache/archives/partial} "$folder"
sed 's/^Components:.*/Components: main contrib non-free/' "$sources" >"$work/sources/debian.sources"
options=(-qq -o Dir::Etc::sourceparts="$work/sources" -o Dir::Etc::sourcelist=/dev/null
    -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=
    -o Acquire::Retries=3 -o Acquire::http::Timeout=30)
apt-get "${options[@]}" update 2>"$work/log" || skip "$(tail -n 1 "$work/log")"
cd "$work" || exit 1
apt-get "${options[@]}" download "${packages[@]}" 2>"$work/log" || skip "$(tail -n 1 "$work/log")"
for package in ./*.deb; do
    dpkg-deb -x "$package" "$folder" || skip "$package cannot be unpacked"
done
touch "$folder/.done"
