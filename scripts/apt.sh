#!/usr/bin/env bash
# Installs the Debian packages named, and only those that are missing: `scripts/apt.sh gcc libc6-dev`.
# Needs root or sudo when something is missing; says what to do where neither is there.
set -euo pipefail

missing=()
for name in "$@"; do
    state=$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null || true)
    [[ $state == installed ]] || missing+=("$name")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "apt.sh: this is not a Debian-like system; install the equivalents of: ${missing[*]}" >&2
    exit 1
fi
as_root=()
if [[ $(id -u) -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
        echo "apt.sh: neither root nor sudo; ask an administrator for: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 "${missing[@]}" >/dev/null
}
echo "apt.sh: installing ${missing[*]}"
# The package lists of a fresh machine are absent or old: try first, update once when that fails.
install 2>/dev/null && exit 0
# Whoever else updates holds a lock that apt does not wait for.
for pause in 5 15 45 0; do
    "${as_root[@]}" apt-get update -qq -o Acquire::Retries=3 && break
    sleep "$pause"
done
install
