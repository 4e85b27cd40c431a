#!/usr/bin/env bash
# The GPU paths on a real GPU: build, tests on the real driver, and the benchmark against cudaMemcpy. For a machine with one
# NVIDIA GPU, a torch that sees it, gcc, and no network. Ends within six minutes.
#
#   tests/gpu/run_on_gpu.sh [OUT]      reports go to OUT (default build/gpu)
#
# PYTHON is the interpreter that has torch. Packages of ours that it lacks are taken from WHEELS, a folder of wheels, if that
# is given. Exit status: 0 all as asked for, 1 a test failed or a measure was missed, 2 the machine lacks something.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
out=$(mkdir -p "${1:-build/gpu}" && cd "${1:-build/gpu}" && pwd)
python=${PYTHON:-python3}
began=$SECONDS
failed=0

say() { printf '== %s (%d s)\n' "$*" $((SECONDS - began)); }
lacks() { echo "run_on_gpu: $*" >&2; exit 2; }
# A part of its own length of time: it, and no part after it, may use up the six minutes.
part() {
    local seconds=$1 name=$2
    shift 2
    say "$name"
    timeout --kill-after=10 "$seconds" "$@" 2>&1 | tee "$out/$name.log" | tail -40
    local status=${PIPESTATUS[0]}
    [[ $status == 0 ]] || { failed=1; echo "== $name: status $status"; }
}

"$python" -c 'import torch; assert torch.cuda.is_available()' 2>"$out/torch.log" || lacks "$python has no torch that sees a GPU"
# What is missing comes from WHEELS into a folder of its own; the machine's Python stays as it is.
site=$PWD/build/gpu-site
export PYTHONPATH="$PWD:$site:$PWD/tests/support${PYTHONPATH:+:$PYTHONPATH}"
for package in cffi:cffi setuptools:setuptools cloudpickle:cloudpickle msgspec:msgspec click:click numpy:numpy pytest:pytest rich:rich; do
    "$python" -c "import ${package%%:*}" 2>/dev/null && continue
    [[ -n ${WHEELS:-} ]] || lacks "Python lacks ${package##*:}; give a folder of wheels in WHEELS"
    "$python" -m pip install --quiet --no-index --find-links "$WHEELS" --target "$site" "${package##*:}" ||
        lacks "no wheel of ${package##*:} in $WHEELS"
done

part 20 machine nvidia-smi
part 120 build "$python" setup.py --quiet build_ext --inplace
[[ $failed == 0 ]] || exit 1
part 30 doctor "$python" -m transport doctor
failed=0 # what it complains of is for the reader
# Without our configuration, which wants plug-ins.
export TN_GPU_DOUBLE=none
part 100 tests "$python" -m pytest tests/gpu/test_on_device.py tests/gpu/test_nccl_on_device.py -q -rs -c /dev/null --rootdir "$PWD" --noconftest \
    --import-mode=importlib -p no:cacheprovider --junitxml="$out/tests.xml"
part 70 bench "$python" -m benchmarks.gpu.device_to_device --rounds 9 --json "$out/device_to_device.json"
say "reports are in $out"
exit "$failed"
