#!/bin/bash
# test.sh [PYTEST ARGS...]: run tests/rdma in the guest over real verbs, exit with pytest's status.
#
#   VENV=DIR     the environment with the project and pytest installed (default: .venv in the checkout)
#   SHARE=DIR    where pytest.txt and junit-*.xml go (default: tests/rig/results)
# and what run.sh takes (RIG_TIMEOUT, MEM, ...).
set -euo pipefail
# shellcheck source=tests/rig/lib.sh
. "$(dirname "$(readlink -f "$0")")/lib.sh"

# The guest cannot leave byte code behind, so without this every run would compile the project's modules again.
compile_modules() {
  local dir dirs=()
  for dir in transport tests; do [ ! -d "$rig_checkout/$dir" ] || dirs+=("$dir"); done
  # A test file that does not compile is pytest's to report.
  "$VENV/bin/python" -m compileall -q "${dirs[@]}" >/dev/null || true
}

"$rig_dir/setup.sh"
cd "$rig_checkout"
VENV=$(realpath -s "${VENV:-$rig_checkout/.venv}")     # -s: a resolved link would name the interpreter's own environment
[ -x "$VENV/bin/python" ] || rig_die "no interpreter at $VENV/bin/python: make the environment first, or set VENV"
export VENV SHARE=${SHARE:-$rig_dir/results}
mkdir -p "$SHARE"
rm -f "$SHARE"/junit-*.xml "$SHARE/pytest.txt"           # never take an old result for this run's
compile_modules
exec "$rig_dir/run.sh" "$rig_dir/guest_pytest.sh" "$@"
