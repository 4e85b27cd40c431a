#!/usr/bin/env bash
# Runs C test programs, some at a time: VARIANT BUILD_DIR TIMEOUT JOBS 'WRAPPER...' PROGRAM...
# Status 0 passes, 77 skips (the last line says why), anything else fails; quiet unless something fails.
set -uo pipefail
export TN_VARIANT=$1 TN_FAKES=$2/fakes limit=$3
jobs=$4
export wrapper=$5
shift 5

# One program; a line with its verdict and its seconds, and what it said if that matters.
run() {
    local name log=$1.log status words begin=$SECONDS
    name=$(basename "$1")
    read -ra words <<<"$wrapper"
    timeout --kill-after=5 "$limit" "${words[@]}" "$1" >"$log" 2>&1 </dev/null
    status=$?
    printf '%s %s %d\n' "$status" "$name" $((SECONDS - begin)) >"$1.verdict"
    case $status in
    0) ;;
    77) echo "SKIPPED $TN_VARIANT/$name: $(tail -n 1 "$log")" ;;
    *)
        [[ $status -eq 124 ]] && echo "$name still ran after $limit s" >>"$log"
        # One write, or it would mix with another's.
        printf '%s\n' "FAILED $TN_VARIANT/$name (status $status)"$'\n'"$(tail -n 60 "$log" | sed 's/^/    /')"
        ;;
    esac
}
export -f run

[[ $# -gt 0 ]] || { echo "native $TN_VARIANT: no test program ran" >&2; exit 1; }
rm -f "${@/%/.verdict}"
printf '%s\0' "$@" | xargs -0 -n 1 -P "$jobs" bash -c 'run "$0"'
# The slowest first: whoever wants the run shorter looks there.
cat "${@/%/.verdict}" | sort -k 3 -n -r | awk -v variant="$TN_VARIANT" -v wanted=$# '
    $1 == 0 { passed++ } $1 == 77 { skipped++ } $1 != 0 && $1 != 77 { failed++ }
    NR <= 3 { slowest = slowest (NR > 1 ? ", " : "") $2 " " $3 " s" }
    END {
        failed += wanted - NR
        printf "native %s: %d passed, %d failed, %d skipped (%s)\n", variant, passed, failed, skipped, slowest
        exit failed > 0
    }'
