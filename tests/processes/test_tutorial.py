"""The programs of docs/tutorial/first-transfer.md and of the how-to guides publish-weights,
collectives and torch-backend, run as they stand there.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def start(tmp_path):
    """Starts a Python program in the folder of the test."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}

    def start(*command, **more):
        return subprocess.Popen(
            [sys.executable, *command], cwd=tmp_path, env={**environment, **more}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


def write_programs(page, folder):
    programs = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page.read_text(), re.DOTALL)
    for name, text in programs:
        (folder / name).write_text(text)
    return [name for name, _ in programs]


def test_the_first_transfer(start, tmp_path):
    page = DOCS / "tutorial" / "first-transfer.md"
    assert write_programs(page, tmp_path) == ["owner.py", "reader.py"]
    with start("owner.py") as owner:
        assert owner.stdout is not None
        address = owner.stdout.readline().strip()
        reader = start("reader.py", address)
        out, err = reader.communicate(timeout=120)
        assert reader.returncode == 0, err
        assert "over shm (mapped)" in out
        assert "the last element is 1048575" in out
        out, err = owner.communicate(timeout=120)
    assert owner.returncode == 0, err
    assert "from reader came b'row 0 is yours'" in out
    assert "[-1. -1. -1.]" in out


def test_publishing_weights(start, tmp_path):
    page = DOCS / "howto" / "publish-weights.md"
    assert write_programs(page, tmp_path) == ["trainer.py", "generator.py"]
    with start("trainer.py") as trainer:
        generator = start("generator.py", trainer.stdout.readline().strip())
        assert generator.stdout.readline() == "version 1 [1.0, 1.0, 1.0, 1.0]\n"
        trainer.stdin.write("\n")
        trainer.stdin.flush()
        out, err = generator.communicate(timeout=120)
        assert generator.returncode == 0, err
        assert out == "version 2 [2.0, 2.0, 2.0, 2.0]\n"
        _, err = trainer.communicate("\n", timeout=120)
    assert trainer.returncode == 0, err


def outputs(programs):
    found = []
    for program in programs:
        out, err = program.communicate(timeout=120)
        assert program.returncode == 0, err
        found.append(out)
    return found


@pytest.mark.slow
def test_collectives(start, tmp_path):
    pytest.importorskip("torch")
    page = DOCS / "howto" / "collectives.md"
    assert write_programs(page, tmp_path) == ["trainers.py", "member.py"]
    at = f"unix:{tmp_path}/at"
    members = [start("member.py", str(rank), "2", at) for rank in range(2)]
    assert outputs(members) == ["tensor([0, 1])\n"] * 2
    (tmp_path / "onesided.json").write_text(re.search(r"echo '(.*)' >", page.read_text())[1])
    disagree = (tmp_path / "member.py").read_text().replace("(rank)", "(rank * (1.5, 1)[rank])")
    (tmp_path / "disagree.py").write_text(disagree)
    setting = {"TRANSPORT_COLLECTIVES_TABLE": str(tmp_path / "onesided.json")}
    for member in [start("disagree.py", str(rank), "2", at, **setting) for rank in range(2)]:
        _, err = member.communicate(timeout=120)
        assert "InvalidUse: ranks ask for different collectives" in err
    assert outputs([start("trainers.py")]) == [
        "[(0, 2, 0.5), (0, 2, 0.5), (1, 2, 0.5), (1, 2, 0.5)]\n"
    ]


@pytest.mark.slow
def test_the_torch_backend(start, tmp_path):
    torch = pytest.importorskip("torch")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("torch: the backend needs 2.13")
    assert write_programs(DOCS / "howto" / "torch-backend.md", tmp_path) == ["train.py"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = [start("train.py", RANK=str(rank), OMP_NUM_THREADS="1", **world) for rank in range(2)]
    out = outputs(ranks)
    assert re.fullmatch(r"a loss of 0\.0\d+ on 2 ranks\n", out[0])
    assert out[1] == ""
    one_host = ("--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    assert outputs([start("-m", "torch.distributed.run", *one_host, "train.py")]) == [out[0]]
