#!/usr/bin/env bash
# Unpacks NVIDIA's own NCCL and its header from PyPI's package, without installing it, for tests that open it where
# there is no GPU. Some 305 MB, once; 345 MB stay.
#   scripts/nccl-library.sh [FOLDER]      build/nccl
# What cannot be had is no failure here: the tests that need it skip, and say so.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
folder=$PWD/${1:-build/nccl}
package=nvidia-nccl-cu13==2.32.3
[[ -f $folder/.done ]] && exit 0
# Where there is no index, each try takes its time: one a day will do.
[[ -n $(find "$folder/.absent" -mmin -1440 2>/dev/null) ]] && exit 0

skip() {
    echo "nccl-library.sh: no real NCCL to test with: $*" >&2
    mkdir -p "$folder" && touch "$folder/.absent"
    exit 0
}
[[ $(uname -m) == x86_64 ]] || skip "the package is for x86-64"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m pip --quiet --disable-pip-version-check download --no-deps --no-cache-dir --dest "$work" \
    $package 2>"$work/log" || skip "$(tail -n 1 "$work/log")"
mkdir -p "$folder"
.venv/bin/python - "$work"/*.whl "$folder" <<'PYTHON' || skip "the package cannot be unpacked"
import sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    wanted = ("nvidia/nccl/lib/libnccl.so.2", "nvidia/nccl/include/nccl.h")
    wheel.extractall(sys.argv[2], wanted)
PYTHON
touch "$folder/.done"
