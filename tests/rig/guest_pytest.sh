#!/bin/bash
# Runs in the guest (test.sh boots it): the RDMA tests against Soft-RoCE. Arguments go to pytest.
# pytest runs in the guest's root namespace; the tests start engines on hosts a, b and c with `ip netns exec`.
rig=$(dirname "$(readlink -f "$0")")
# shellcheck source=tests/rig/two_hosts.sh
. "$rig/two_hosts.sh" || exit 125

export TRANSPORT_RIG=1 TRANSPORT_REQUIRE=${TRANSPORT_REQUIRE:+$TRANSPORT_REQUIRE,}rdma
export COVERAGE_FILE=$SHARE/.coverage
# pytest's own cache is of no use to anyone here: it would vanish with the guest.
"$VENV/bin/python" -m pytest tests/rdma -q -p no:cacheprovider --junitxml="$SHARE/junit.xml" "$@" 2>&1 | tee "$SHARE/pytest.txt"
exit "${PIPESTATUS[0]}"
