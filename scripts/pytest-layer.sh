#!/usr/bin/env bash
# Runs one folder of tests/ and leaves a report for the final count: LAYER [PYTEST ARGUMENT...]
# A layer without any test file says so; one whose files hold no test fails (pytest's status 5).
set -euo pipefail
cd "$(dirname "$0")/.."
layer=$1
shift
if [[ -z $(find "tests/$layer" -name 'test_*.py' -print -quit 2>/dev/null) ]]; then
    echo "SKIPPED $layer: tests/$layer has no tests yet"
    exit 0
fi
mkdir -p build/reports
exec .venv/bin/python -m pytest "tests/$layer" -q --junitxml="build/reports/$layer.xml" "$@"
