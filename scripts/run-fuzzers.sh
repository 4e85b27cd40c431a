#!/usr/bin/env bash
# Runs libFuzzer targets for a bounded time each: BUILD_DIR CORPUS_DIR SECONDS PROGRAM...
# Seeds are read from CORPUS_DIR/<target>; what the run finds goes to BUILD_DIR, so the tree stays clean.
set -uo pipefail
build=$1 corpus=$2 seconds=$3
shift 3

failed=0
for program in "$@"; do
    name=$(basename "$program")
    found=$build/corpus/$name seeds=$corpus/${name#fuzz_} log=$program.log
    mkdir -p "$found"
    dirs=("$found")
    [[ -d $seeds ]] && dirs+=("$seeds")
    if (cd "$build" && timeout --kill-after=5 $((seconds + 300)) "$program" -max_total_time="$seconds" -timeout=60 \
        -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$build/crash-$name-" "${dirs[@]}") >"$log" 2>&1; then
        echo "fuzz $name: $(awk '/number_of_executed_units/ { print $2 }' "$log") inputs, nothing found"
    else
        failed=$((failed + 1))
        echo "FAILED fuzz $name"
        tail -n 60 "$log" | sed 's/^/    /'
    fi
done
echo "native fuzz: $(($# - failed)) passed, $failed failed"
[[ $failed -eq 0 ]] || exit 1
[[ $# -gt 0 ]] || echo "SKIPPED fuzz: no target in native/fuzz"
