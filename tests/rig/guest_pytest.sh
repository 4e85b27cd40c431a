#!/bin/bash
# Runs in the guest (test.sh boots it): the RDMA tests against Soft-RoCE. Arguments go to pytest.
# pytest runs in the guest's root namespace; the tests start engines on hosts a, b and c with `ip netns exec`.
rig=$(dirname "$(readlink -f "$0")")
# shellcheck source=tests/rig/two_hosts.sh
. "$rig/two_hosts.sh" || exit 125

export TRANSPORT_RIG=1 TRANSPORT_REQUIRE=${TRANSPORT_REQUIRE:+$TRANSPORT_REQUIRE,}rdma
export COVERAGE_FILE=$SHARE/.coverage
# One interpreter for the contract and one for the rest: a guest process that has touched too many scattered pages runs into the
# host's vm.max_map_count and stands still (docs/howto/run-the-rig.md).
status=0 ran=0
: >"$SHARE/pytest.txt"

# part NAME FILE... -- ARGUMENT...: pytest's status 5 means that the arguments select nothing of this part.
part() {
  local name=$1 files=() result
  shift
  while [ "$1" != -- ]; do files+=("$1"); shift; done
  shift
  # The cache would vanish with the guest anyway; in the tree it would only fill the overlay.
  "$VENV/bin/python" -m pytest "${files[@]}" -q -o cache_dir=/tmp/pytest-cache --junitxml="$SHARE/junit-$name.xml" "$@" 2>&1 |
    tee -a "$SHARE/pytest.txt"
  result=${PIPESTATUS[0]}
  [ "$result" = 5 ] && return
  ran=1
  [ "$result" = 0 ] || status=$result
}

shopt -s extglob nullglob
part contract tests/rdma/test_contract_*.py -- "$@"
part rest tests/rdma/test_!(contract_*).py -- "$@"
[ "$ran" = 1 ] || status=5
exit "$status"
