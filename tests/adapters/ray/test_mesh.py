"""A mesh on Ray: agents in a placement group, the mesh's processes below them."""

from __future__ import annotations

import pytest
from mesh_hosts import count_on, exercise
from patience import until

from transport import Unavailable
from transport.mesh.hosts.ray import RayHost

SMALL = {"CPU": 0.1}


def test_processes_start_die_and_are_replaced(cluster):
    exercise(RayHost(2, per_agent=2, resources=SMALL), 4)


def test_the_same_program_runs_there(cluster):
    count_on("ray", resources=SMALL)


def groups() -> int:
    """Placement groups that hold resources."""
    import ray.util

    table = ray.util.placement_group_table()
    return sum(group["state"] != "REMOVED" for group in table.values())


def test_resources_are_given_back(cluster):
    until(lambda: groups() == 0)
    host = RayHost(2, resources=SMALL)
    assert groups() == 1
    host.close()
    host.close()
    until(lambda: groups() == 0)


def test_what_the_cluster_does_not_have_is_an_error(cluster):
    with pytest.raises(Unavailable, match=r"Ray did not give 2 times .*1000"):
        RayHost(2, resources={"CPU": 1000}, timeout=0.5)


def test_output_reaches_the_driver(cluster, capsys):
    host = RayHost(1, resources=SMALL, preload=["this"], method="spawn")
    exercise(host, 1)
    assert "actor[0] The Zen of Python, by Tim Peters" in capsys.readouterr().out
