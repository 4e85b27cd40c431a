from __future__ import annotations

import pytest

from transport.cli import facts, facts_rdma
from transport.cli.doctor_checks import all_findings, limits, memory, rdma, same_host
from transport.config import Settings

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path):
    """Writes files below another root."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    return write


def test_an_empty_machine_is_described_without_a_failure(tmp_path):
    assert all_findings(Settings(), tmp_path)


def test_this_machine_is_described():
    host = facts.host()
    assert host["cores"] >= 1
    assert host["memory_bytes"] > 0


def test_the_tightest_control_group_counts(machine):
    root = machine(
        {
            "proc/self/cgroup": "0::/job/task",
            "sys/fs/cgroup/job/memory.max": str(2 * GIB),
            "sys/fs/cgroup/job/memory.current": "5",
            "sys/fs/cgroup/job/task/memory.max": "max",
            "sys/fs/cgroup/job/task/memory.current": "3",
        }
    )
    group = facts.memory_group(root)
    assert group is not None
    assert (group.limit, group.used) == (2 * GIB, 5)
    assert [finding.state for finding in memory(root)] == ["note"]


def test_version_one_control_groups(machine):
    root = machine(
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/job\n0::/",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        }
    )
    group = facts.memory_group(root)
    assert group is not None
    assert (group.limit, group.used) == (GIB, None)


def test_no_limit_and_no_group(machine):
    root = machine({"proc/self/cgroup": "0::/"})
    assert facts.memory_group(root) is None
    machine({"sys/fs/cgroup/memory.max": "max"})
    group = facts.memory_group(root)
    assert group is not None
    assert group.limit is None


@pytest.mark.parametrize(
    ("scope", "capabilities", "state", "words"),
    [
        (None, "0", "ok", "no Yama"),
        ("0", "0", "ok", "the uid decides"),
        ("1", "0", "note", "restricted"),
        ("1", f"{1 << facts.CAP_SYS_PTRACE:016x}", "note", "not for this process"),
        ("3", "0", "note", "restricted"),
    ],
)
def test_yama(machine, scope, capabilities, state, words):
    files = {"proc/self/status": f"Name:\tx\nCapEff:\t{capabilities}"}
    if scope is not None:
        files["proc/sys/kernel/yama/ptrace_scope"] = scope
    finding = next(iter(same_host(machine(files))))
    assert finding.state == state
    assert words in finding.value


def test_the_ptracer_setting_is_named_only_where_it_helps(machine):
    for scope, named in (("1", True), ("2", False)):
        root = machine({"proc/sys/kernel/yama/ptrace_scope": scope})
        assert ("TRANSPORT_ALLOW_PTRACER" in next(iter(same_host(root))).remedy) is named


def test_locked_memory_does_not_bind_who_is_exempt(machine):
    root = machine({"proc/self/status": f"CapEff:\t{1 << facts.CAP_IPC_LOCK:016x}"})
    finding = next(iter(limits(root)))
    assert finding.state == "ok"
    assert "CAP_IPC_LOCK" in finding.value


PORT = "sys/class/infiniband/rxe_a/ports/1"


def test_ports_and_gids(machine):
    gids = {
        f"{PORT}/gids/0": "fe80:0000:0000:0000:0000:00ff:fe00:0001",
        f"{PORT}/gids/1": "0000:0000:0000:0000:0000:ffff:0a00:0001",
        f"{PORT}/gids/2": "0000:0000:0000:0000:0000:0000:0000:0000",
        f"{PORT}/gid_attrs/types/1": "RoCE v2",
        f"{PORT}/gid_attrs/ndevs/1": "va",
    }
    root = machine(
        {
            f"{PORT}/state": "4: ACTIVE",
            f"{PORT}/link_layer": "Ethernet",
            f"{PORT}/rate": "2.5 Gb/sec (1X SDR)",
            **gids,
        }
    )
    (port,) = facts_rdma.ports(root)
    assert port.active
    assert [(gid.index, gid.kind, gid.interface) for gid in port.gids] == [
        (0, "unknown", ""),
        (1, "RoCE v2", "va"),
    ]
    assert [finding.state for finding in rdma(root)] == ["missing", "ok", "ok", "ok"]


def test_why_there_is_no_rdma(machine, tmp_path):
    reason, remedy = facts_rdma.obstacle(tmp_path) or ("", "")
    assert "no RDMA subsystem" in reason
    assert "make rdma-shell" in remedy
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    assert "network namespace" in (facts_rdma.obstacle(tmp_path) or ("",))[0]
    root = machine({f"{PORT}/state": "4: ACTIVE"})
    assert "uverbs" in (facts_rdma.obstacle(root) or ("",))[0]
    machine({"dev/infiniband/uverbs0": ""})
    assert facts_rdma.obstacle(root) is None
