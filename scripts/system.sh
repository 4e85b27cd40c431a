#!/usr/bin/env bash
# What `make setup` needs from the system, asked by what works rather than by package name: a Python that was
# not installed from Debian needs none of Debian's Python packages.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "setup: needs CPython 3.10 or newer; '$python' is not. Name another: make setup PYTHON=python3.12" >&2
    exit 1
fi

packages=()
"$python" -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3-venv)
"$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || packages+=(python3-dev)
command -v "${CC:-gcc}" >/dev/null || packages+=(gcc)
echo '#include <stdio.h>' | "${CC:-gcc}" -E - >/dev/null 2>&1 || packages+=(libc6-dev)
[[ ${#packages[@]} -eq 0 ]] || scripts/apt.sh "${packages[@]}"
