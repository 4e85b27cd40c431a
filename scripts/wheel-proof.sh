#!/usr/bin/env bash
# Builds sdist -> wheel the way a stranger would, and proves what the project promises about the wheel:
# it builds with gcc alone, with every RDMA and GPU header hidden; it runs on glibc 2.28 and newer; it keeps to the
# stable ABI; it installs into an empty environment, imports without torch, and `transport doctor` works there.
# Leaves dist/*.tar.gz and dist/*.whl.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
oldest_glibc=28 # the 2.x of manylinux_2_x

say() { printf 'wheel: %s\n' "$*"; }

build_sdist() {
    rm -rf dist
    "$bin/python" -m build --sdist --outdir dist . >"$work/sdist.log" 2>&1 || { cat "$work/sdist.log"; return 1; }
    tar -xf dist/*.tar.gz -C "$work"
    say "sdist $(basename dist/*.tar.gz)"
}

# A PATH with the compiler and nothing else, so that a build that calls git, cmake or pkg-config fails here.
narrow_path() {
    mkdir -p "$work/path"
    local tool found
    for tool in gcc cc as ld "$(gcc -dumpmachine)-gcc"; do
        found=$(command -v "$tool") && ln -sf "$found" "$work/path/$tool"
    done
    echo "$work/path"
}

# Empty file systems over the foreign headers, in a mount namespace of this build's own.
hide_and_run() {
    local rights=(--mount)
    [[ $(id -u) -eq 0 ]] || rights+=(--map-root-user)
    if ! unshare "${rights[@]}" true 2>/dev/null; then
        say "SKIPPED hiding the headers: no mount namespaces here (check_native_layers.py still reads the includes)"
        "$@"
        return
    fi
    # shellcheck disable=SC2016
    unshare "${rights[@]}" bash -c '
        for folder in /usr/include/infiniband /usr/include/rdma /usr/include/hip /usr/include/nccl* \
                      /usr/local/cuda*/include /opt/rocm*/include; do
            if [[ -d $folder ]]; then mount -t tmpfs -o ro none "$folder" && echo "wheel: hidden $folder"; fi
        done
        for file in /usr/include/cuda*.h /usr/include/nccl*.h; do
            if [[ -f $file ]]; then mount --bind /dev/null "$file" && echo "wheel: hidden $file"; fi
        done
        exec "$@"' bash "$@"
}

build_wheel() {
    local tree path
    tree=$(echo "$work"/tensor_transport-*)
    path=$(narrow_path)
    hide_and_run env -u TRANSPORT_SANITIZE PATH="$path" "$bin/python" -m build --wheel --outdir "$PWD/dist" "$tree" \
        >"$work/wheel.log" 2>&1 || { cat "$work/wheel.log"; return 1; }
    grep '^wheel: ' "$work/wheel.log" || true
    say "built $(basename dist/*.whl) with gcc alone"
}

check_tags() {
    local shown tag
    case $(basename dist/*.whl) in
    *-cp310-abi3-linux_*.whl) ;;
    *) say "not tagged cp310-abi3"; return 1 ;;
    esac
    shown=$("$bin/auditwheel" show dist/*.whl)
    tag=$(grep -oE '"manylinux_2_[0-9]+_' <<<"$shown" | grep -oE '[0-9]+_$' | tr -d _ | head -n 1)
    if [[ -z $tag || $tag -gt $oldest_glibc ]]; then
        echo "$shown"
        say "needs a newer glibc than 2.$oldest_glibc; give these an older version in bindings/glibc_floor.h:"
        unzip_module
        readelf -W --dyn-syms "$work/module/"*.so | grep -oE '[a-z_0-9]+@GLIBC_2\.(29|[3-9][0-9])' | sort -u
        return 1
    fi
    say "manylinux_2_$tag"
}

unzip_module() {
    mkdir -p "$work/module"
    "$bin/python" -c 'import sys, zipfile, pathlib
for name in (z := zipfile.ZipFile(sys.argv[1])).namelist():
    if name.endswith(".so"): pathlib.Path(sys.argv[2], pathlib.Path(name).name).write_bytes(z.read(name))' \
        dist/*.whl "$work/module"
}

check_needed() {
    unzip_module
    local needed foreign
    needed=$(readelf -d "$work/module/"*.so | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
    foreign=$(grep -vE '^(libc|libpthread|libdl|librt|ld-linux-.*)\.so\.[0-9]+$' <<<"$needed" || true)
    [[ -z $foreign ]] || { say "links to $foreign"; return 1; }
    say "needs only $(tr '\n' ' ' <<<"$needed")"
}

check_abi3() {
    "$bin/abi3audit" --strict --summary dist/*.whl 2>&1 | sed 's/^/wheel: abi3audit: /'
}

# The same wheel on every CPython >= 3.10 that this machine happens to have.
check_install() {
    local wheel python version seen=" "
    wheel=$(echo "$PWD"/dist/*.whl)
    for python in python3 python3.{10,11,12,13,14,15}; do
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        [[ $seen == *" $version "* ]] && continue
        seen+="$version "
        "$python" -m venv "$work/venv-$version"
        "$work/venv-$version/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
        (
            cd "$work" # away from the tree, whose package would be imported instead
            "venv-$version/bin/python" -W error -c 'import sys, transport; import transport.ffi._native
assert "site-packages" in transport.__file__, transport.__file__
assert "torch" not in sys.modules, "import transport imported torch"'
            "venv-$version/bin/transport" doctor >"doctor-$version.log" 2>&1 ||
                { cat "doctor-$version.log"; say "transport doctor failed on CPython $version"; exit 1; }
        )
        say "installed, imported and examined by transport doctor on CPython $version"
    done
}

build_sdist
build_wheel
check_tags
check_needed
check_abi3
check_install
