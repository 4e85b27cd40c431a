"""Who started this process: the variables of each launcher."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import InvalidUse, PeerRefused, Settings, Unavailable
from transport.mesh.hosts import orders
from transport.mesh.hosts.launchers import LAUNCHERS, Launched, first_host, ports_of, recognise
from transport.mesh.hosts.ranks import addresses_of

ENVIRONMENTS = {
    "torchrun": (
        {
            "TORCHELASTIC_RUN_ID": "f3a1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "RANK": "9",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "16",
            "MASTER_ADDR": "node1",
            "MASTER_PORT": "29500",
        },
        Launched("torchrun", 9, 16, "node1", "torchrun f3a1/0/29500"),
    ),
    "slurm": (
        {
            "SLURM_JOB_ID": "4711",
            "SLURM_STEP_ID": "2",
            "SLURM_PROCID": "3",
            "SLURM_NTASKS": "64",
            "SLURM_STEP_NUM_TASKS": "8",
            "SLURM_JOB_NODELIST": "gpu[07-12,20],big1",
        },
        Launched("slurm", 3, 8, "gpu07", "slurm 4711/2"),
    ),
    "kubernetes": (
        {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "train-0.train"},
        Launched("kubernetes", 1, 2, "train-0.train", "kubernetes train-0.train"),
    ),
    "lws": (
        {
            "LWS_WORKER_INDEX": "3",
            "LWS_GROUP_SIZE": "4",
            "LWS_LEADER_ADDRESS": "vllm-0.vllm.default",
        },
        Launched("lws", 3, 4, "vllm-0.vllm.default", "lws vllm-0.vllm.default"),
    ),
    "skypilot": (
        {
            "SKYPILOT_NODE_RANK": "0",
            "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.9\n",
            "SKYPILOT_TASK_ID": "sky-2026-11-30_cluster-1",
        },
        Launched("skypilot", 0, 2, "10.0.0.4", "skypilot sky-2026-11-30_cluster-1"),
    ),
    "openmpi": (
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "n7"},
        Launched("openmpi", 0, 2, "", "openmpi n7"),
    ),
    "env": (
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "29500"},
        Launched("env", 0, 2, "::1", "env ::1/29500"),
    ),
}


@pytest.mark.parametrize("name", [row.name for row in LAUNCHERS])
def test_each_launcher_is_recognised_by_its_variables(name: str):
    environment, launched = ENVIRONMENTS[name]
    assert recognise({"PATH": "/bin", **environment}) == launched


@pytest.mark.parametrize("outer", ["skypilot", "kubernetes", "slurm", "lws"])
def test_torchrun_inside_another_launcher_counts(outer: str):
    environment, launched = ENVIRONMENTS["torchrun"]
    assert recognise({**ENVIRONMENTS[outer][0], **environment}) == launched


def test_no_launcher_is_an_error_that_says_how_to_start():
    with pytest.raises(Unavailable, match="transport launch"):
        recognise({"RANK": "0"})
    # The batch script of a SLURM job, which srun did not start.
    with pytest.raises(Unavailable):
        recognise({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"})


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"RANK": "-1"}, InvalidUse),
        ({"RANK": "٣"}, InvalidUse),
        ({"RANK": "16"}, InvalidUse),
        ({"WORLD_SIZE": "many"}, InvalidUse),
        ({"WORLD_SIZE": ""}, Unavailable),
    ],
)
def test_variables_that_make_no_sense_are_named(changed: dict[str, str], error: type[Exception]):
    with pytest.raises(error, match=r"RANK|WORLD_SIZE"):
        recognise({**ENVIRONMENTS["torchrun"][0], **changed})


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[007-012,020]", "node007"),
        ("node[3]", "node3"),
        ("rack[2-3]-node[5,8]", "rack2-node5"),
        ("a[1-2]-ib,b", "a1-ib"),
        ("10.0.0.4\n10.0.0.5", "10.0.0.4"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_list(hosts: str, first: str):
    assert first_host(hosts) == first


@given(st.text(max_size=40), st.text(max_size=40))
def test_jobs_have_ports_of_their_own(one: str, other: str):
    ports = ports_of(one)
    assert len(set(ports)) == len(ports)
    assert all(20000 <= port < 30000 for port in ports)
    assert ports == ports_of(one)
    assert (set(ports) == set(ports_of(other))) == (ports[0] == ports_of(other)[0])


def test_an_address_that_is_set_counts_alone():
    launched = Launched("openmpi", 0, 2, "", "openmpi n7")
    with pytest.raises(Unavailable, match="TRANSPORT_MESH_ADDRESS"):
        addresses_of(launched, Settings())
    (address,) = addresses_of(launched, Settings(mesh_address="node1:26600"))
    assert str(address) == "node1:26600"
    with pytest.raises(InvalidUse):
        addresses_of(launched, Settings(mesh_address="node1:0"))


@given(st.binary(max_size=200))
def test_what_is_no_message_is_refused(data: bytes):
    for decoder in (orders.GREETING, orders.ORDER, orders.NEWS):
        with contextlib.suppress(PeerRefused):
            orders.decode(data, decoder)
