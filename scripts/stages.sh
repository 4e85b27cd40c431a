#!/usr/bin/env bash
# Runs `make STAGE` for each stage, all of them even when one fails, TEST_JOBS at a time (2: most stages wait more than
# they work). Each one's output comes out whole when it ends; then a table of times, and one line that counts the tests,
# read from pytest's reports and the C runner's lines.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export reports=build/reports
rm -rf "$reports"
mkdir -p "$reports"
started=$SECONDS

run() {
    local log=$reports/$1.log verdict=ok TIMEFORMAT='%R %U %S' took
    took=$({ time make "$1" >"$log" 2>&1; } 2>&1) || verdict=FAILED
    awk -v name="$1" -v verdict=$verdict '{ printf "  %-13s %-7s %4d s  %5d s of CPU\n", name, verdict, $1, $2 + $3 }' \
        <<<"$took" >"$reports/$1.verdict"
    # One after another, or the outputs of two would mix.
    (flock 9; printf '\n======== %s\n' "$1"; cat "$log") 9>"$reports/.turn"
}
export -f run
# shellcheck disable=SC2016 # the inner shell expands it
printf '%s\0' "$@" | xargs -0 -n 1 -P "${TEST_JOBS:-2}" bash -c 'run "$0"'

printf '\n======== stages\n'
bad=()
for stage in "$@"; do
    cat "$reports/$stage.verdict" || echo "  $stage: no verdict"
    grep -qs ' ok ' "$reports/$stage.verdict" || bad+=("$stage")
done
grep -h '^SKIPPED ' "$reports"/*.log | sort | uniq -c | sort -rn | head -n 40
.venv/bin/python scripts/count_tests.py "$reports" | tee "$reports/summary"
if [[ ${#bad[@]} -gt 0 ]]; then
    # Again, where the end of a log is all that is looked at.
    grep -hE -A 2 '^(FAILED|ERROR) |: failed: ' "$reports"/*.log | head -n 80
    echo "failed stages: ${bad[*]} ($((SECONDS - started)) s)"
    exit 1
fi
echo "all stages passed in $((SECONDS - started)) s"
