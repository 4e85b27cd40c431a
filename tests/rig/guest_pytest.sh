#!/bin/bash
# Runs in the guest (test.sh boots it): the RDMA tests against Soft-RoCE. Arguments go to pytest.
# pytest runs in the guest's root namespace; the tests start engines on hosts a, b and c with `ip netns exec`.
rig=$(dirname "$(readlink -f "$0")")
# shellcheck source=tests/rig/two_hosts.sh
. "$rig/two_hosts.sh" || exit 125

export TRANSPORT_RIG=1 TRANSPORT_REQUIRE=${TRANSPORT_REQUIRE:+$TRANSPORT_REQUIRE,}rdma
export COVERAGE_FILE=$SHARE/.coverage
# The cache would vanish with the guest anyway; in the tree it would only fill the overlay.
"$VENV/bin/python" -m pytest tests/rdma -q -o cache_dir=/tmp/pytest-cache --junitxml="$SHARE/junit.xml" "$@" 2>&1 | tee "$SHARE/pytest.txt"
exit "${PIPESTATUS[0]}"
