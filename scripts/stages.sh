#!/usr/bin/env bash
# Runs `make STAGE` for each stage, all of them even when one fails, and prints the time of each.
# Ends with one line that counts the tests, read from pytest's reports and the C runner's lines.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
reports=build/reports
rm -rf "$reports"
mkdir -p "$reports"

bad=() table=""
started=$SECONDS
for stage in "$@"; do
    begin=$SECONDS
    printf '\n======== %s\n' "$stage"
    if make "$stage" 2>&1 | tee "$reports/$stage.log"; then verdict=ok; else verdict=FAILED bad+=("$stage"); fi
    table+=$(printf '  %-12s %-7s %4d s' "$stage" "$verdict" $((SECONDS - begin)))$'\n'
done

printf '\n======== stages\n%s' "$table"
grep -h '^SKIPPED ' "$reports"/*.log | sort | uniq -c | sort -rn | head -n 40
.venv/bin/python scripts/count_tests.py "$reports" | tee "$reports/summary"
if [[ ${#bad[@]} -gt 0 ]]; then
    # Again, where the end of a log is all that is looked at.
    grep -hE -A 2 '^(FAILED|ERROR) |: failed: ' "$reports"/*.log | head -n 80
    echo "failed stages: ${bad[*]} ($((SECONDS - started)) s)"
    exit 1
fi
echo "all stages passed in $((SECONDS - started)) s"
