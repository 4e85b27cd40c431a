"""What doctor says of rails: what is used, why not, and settings after the device's limits."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from fakeverbs import LIBRARY

from transport.cli.doctor_rdma import _rail, rails, rnr_seconds
from transport.config import TABLE, Settings
from transport.providers.verbs.devices import UsablePort
from transport.providers.verbs.gid import Gid, Kind
from transport.providers.verbs.ports import Port

PORT = Port(
    "mlx5_0",
    1,
    state=4,
    ethernet=True,
    firmware="28.39",
    max_mtu=4096,
    active_mtu=4096,
    max_message=1 << 30,
    max_region=1 << 40,
    max_send_depth=128,
    max_sges=30,
    max_reads_out=16,
    max_reads_in=16,
    atomics=1,
    rate=50.0,
    numa=1,
    driver="mlx5_core",
)
GID = Gid(3, ipaddress.IPv6Address("::ffff:10.0.0.5").packed, Kind.V2, "eth0", prefix=120)


def lines(rail: UsablePort, **settings: Any) -> dict[str, tuple[str, str, str]]:
    """State, value and remedy by name."""
    found = _rail(rail, Settings(**settings))
    return {f.name.removeprefix("mlx5_0:1").strip(): (f.state, f.value, f.remedy) for f in found}


def test_a_good_port() -> None:
    found = lines(UsablePort(PORT, GID))
    assert {state for state, _, _ in found.values()} == {"ok"}
    assert found[""][1] == "used: RoCE, 50 GB/s, mlx5_core, firmware 28.39"
    assert found["GID"][1] == "3 10.0.0.5 RoCE v2 eth0 (IPv4)"
    assert "30 segments, atomics, no on-demand paging, NUMA node 1" in found["limits"][1]
    assert "each 128 requests deep" in found["in force"][1]  # not the 256 of the setting


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"active_mtu": 1024}, "MTU", "MTU of 4200 or 9000 on eth0"),
        ({"max_reads_out": 0}, "reads", "no part in RDMA reads"),  # M#4342
    ],
)
def test_what_a_device_lacks(change: dict[str, Any], name: str, words: str) -> None:
    state, _, remedy = lines(UsablePort(dataclasses.replace(PORT, **change), GID))[name]
    assert state == "note"
    assert words in remedy


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"raw": ipaddress.IPv6Address("fe80::5").packed}, "one switch at best"),
        ({"overlay": True}, "this host only"),
        ({"kind": Kind.V1}, "not routed"),
    ],
)
def test_gids_that_lead_nowhere(change: dict[str, Any], words: str) -> None:
    """A2, A12."""
    assert words in lines(UsablePort(PORT, dataclasses.replace(GID, **change)))["GID"][2]


def test_settings_are_shown_after_the_devices_limits() -> None:
    settings = {"verbs_mtu": 2048, "verbs_traffic_class": 106, "verbs_timeout": 20}
    found = lines(UsablePort(PORT, GID), **settings)
    assert found["MTU"][1] == "2048 (port: 4096 active, 4096 at most)"
    assert "traffic class 106" in found["in force"][1]
    assert "sent again after 4.29 s, 7 times" in found["in force"][1]
    assert "not ready (RNR): waits 0.00128 s, 6 times" in found["in force"][1]


def test_rnr_timers() -> None:
    """The specification's codes, as rdma_rxe's rnrnak_usec has them."""
    assert [rnr_seconds(code) for code in (0, 1, 5, 14, 31)] == [
        0.65536, 0.00001, 0.00006, 0.00128, 0.49152,
    ]  # fmt: skip


def test_no_library_is_no_failure() -> None:
    assert rails(Settings(verbs_lib="/nonexistent/libibverbs.so.1")) == []


def test_one_command_lists_every_knob_and_every_port() -> None:
    """D2, M#4630."""
    environ = {
        **os.environ,
        "TRANSPORT_VERBS_LIB": LIBRARY,
        "TRANSPORT_VERBS_SEVICE_LEVEL": "3",
        "FAKEVERBS": "devices=2 fake1.kind=2 fake1.vendor_id=0x1d0f",
    }
    command = [sys.executable, "-m", "transport", "doctor", "--no-test", "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert {row["name"] for row in report["settings"]} == {row.name for row in TABLE}
    values = {finding["name"]: finding for finding in report["findings"]}
    assert values["fake0:1"]["value"].startswith("used: RoCE")
    assert "not used: EFA" in values["fake1:1"]["value"]
    nearest = values["TRANSPORT_VERBS_SEVICE_LEVEL"]["remedy"]
    assert nearest == "did you mean TRANSPORT_VERBS_SERVICE_LEVEL?"
    assert done.stderr.count("TRANSPORT_VERBS_SEVICE_LEVEL is no setting") == 1
