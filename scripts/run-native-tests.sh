#!/usr/bin/env bash
# Runs C test programs one after another: VARIANT BUILD_DIR TIMEOUT 'WRAPPER...' PROGRAM...
# Status 0 passes, 77 skips (the last line says why), anything else fails; quiet unless something fails.
set -uo pipefail
variant=$1 build=$2 limit=$3
read -ra wrapper <<<"$4"
shift 4

export TN_FAKES=$build/fakes TN_VARIANT=$variant
passed=0 failed=0 skipped=0
for program in "$@"; do
    name=$(basename "$program") log=$program.log
    timeout --kill-after=5 "$limit" "${wrapper[@]}" "$program" >"$log" 2>&1 </dev/null
    status=$?
    case $status in
    0) passed=$((passed + 1)) ;;
    77)
        skipped=$((skipped + 1))
        echo "SKIPPED $variant/$name: $(tail -n 1 "$log")"
        ;;
    *)
        failed=$((failed + 1))
        [[ $status -eq 124 ]] && echo "$name still ran after $limit s" >>"$log"
        echo "FAILED $variant/$name (status $status)"
        tail -n 60 "$log" | sed 's/^/    /'
        ;;
    esac
done
echo "native $variant: $passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 ]] || exit 1
[[ $((passed + skipped)) -gt 0 ]] || { echo "native $variant: no test program ran" >&2; exit 1; }
