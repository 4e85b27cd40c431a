"""`transport topology` on recorded machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import fakecuda
import pytest
import sysfs_tree
from click.testing import CliRunner

from transport.cli import commands
from transport.topology import read_machine

if TYPE_CHECKING:
    from pathlib import Path


def run(tree: Path, *options: str, **environ: str) -> str:
    result = CliRunner().invoke(
        commands, ["topology", "--sysfs", str(tree), *options], env=environ, catch_exceptions=False
    )
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("record", sysfs_tree.names())
def test_every_machine_can_be_shown(record: str, tmp_path: Path) -> None:
    tree = sysfs_tree.expand(record, tmp_path / "sys")
    facts = json.loads(run(tree, "--json"))
    shown = run(tree)
    for device in [*facts["nics"], *facts["gpus"]]:
        assert f"{device['name']}: " in shown
        assert device["address"] in shown
    for choice in facts["choices"]:
        assert choice["place"] in shown
        assert choice["reason"].split(" ")[0] in shown


def test_the_tree_and_the_choice(tmp_path: Path) -> None:
    shown = run(sysfs_tree.expand("eight_gpus", tmp_path / "sys"))
    assert "0000:a0:01.0 / 0000:ab:00.0  mlx5_5: port 1 ACTIVE InfiniBand 400 Gb/sec (4X)" in shown
    row = next(line.split() for line in shown.splitlines() if line.startswith(" gpu5"))
    assert row[:3] == ["gpu5", "mlx5_5", "PIX"]


def test_the_map_and_what_a_process_may_see(tmp_path: Path) -> None:
    """I4, uccl#162."""
    tree = sysfs_tree.expand("eight_gpus", tmp_path / "sys")
    environ = {"CUDA_VISIBLE_DEVICES": "5,4", "TRANSPORT_VERBS_NIC_MAP": "gpu5=mlx5_0"}
    facts = json.loads(run(tree, "--json", **environ))
    choices = {choice["place"]: choice for choice in facts["choices"]}
    assert choices["gpu5"]["nics"] == ["mlx5_0"]
    assert choices["gpu5"]["reason"] == "by TRANSPORT_VERBS_NIC_MAP"
    assert choices["gpu0"]["nics"] == ["mlx5_0"]
    assert facts["distances"]["gpu5"]["mlx5_5"] == "PIX"
    assert "CUDA_VISIBLE_DEVICES=5,4 renumbers the GPUs" in run(tree, **environ)


def test_the_drivers_numbers_are_placed_by_pci_address(tmp_path: Path) -> None:
    """I4: CUDA_VISIBLE_DEVICES permutes them, and one GPU is none that sysfs tells of."""
    tree = sysfs_tree.expand("eight_gpus", tmp_path / "sys")
    addresses = [gpu.address for gpu in read_machine(tree).gpus]
    pci = {"pci.0": addresses[6], "pci.1": addresses[2], "pci.2": "0000:ff:00.0"}
    environ = fakecuda.environment(devices=3, **pci) | {"CUDA_VISIBLE_DEVICES": "2,1,0"}
    words = [sys.executable, "-m", "transport", "topology", "--sysfs", str(tree)]
    own = os.environ | environ
    told = subprocess.run([*words, "--json"], env=own, capture_output=True, check=True).stdout
    gpus = json.loads(told)["gpus"]
    assert {gpu["name"]: gpu["device"] for gpu in gpus if gpu["device"]} == {
        "gpu6": "cuda:2",
        "gpu2": "cuda:1",
    }
    shown = subprocess.run(words, env=own, capture_output=True, check=True, text=True).stdout
    row = next(line.split() for line in shown.splitlines() if line.startswith(" gpu6"))
    assert row[:4] == ["gpu6", "(cuda:2)", "mlx5_6", "PIX"]
    assert "sysfs does not tell of cuda:0 at 0000:ff:00.0" in shown


def test_a_machine_without_anything_says_so(tmp_path: Path) -> None:
    shown = run(tmp_path)
    assert "! no GPUs" in shown
    assert "UNTOLD" not in shown
    assert "no GPUs" not in run(sysfs_tree.expand("eight_gpus", tmp_path / "sys"))


def test_a_variable_that_makes_no_sense_is_told_beside_the_rest(tmp_path: Path) -> None:
    tree = sysfs_tree.expand("eight_gpus", tmp_path / "sys")
    environ = {"TRANSPORT_VERBS_NIC_MAP": "gpu5=mlx5_0", "GPU_PLATFORM": "nvidia"}
    words = ["topology", "--sysfs", str(tree), "--json"]
    result = CliRunner().invoke(commands, words, env=environ)
    assert result.exit_code == 1
    assert "GPU_PLATFORM must be any, cuda, rocm or none, not 'nvidia'" in result.stderr
    choices = {choice["place"]: choice for choice in json.loads(result.stdout)["choices"]}
    assert choices["gpu5"]["nics"] == ["mlx5_0"]


def test_this_machine() -> None:
    result = CliRunner().invoke(commands, ["topology"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "cpu:0" in result.stdout
