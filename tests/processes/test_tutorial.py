"""The programs of docs/tutorial/first-transfer.md and docs/howto/publish-weights.md, run as they
stand there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def start(tmp_path):
    """Starts a Python program in the folder of the test."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}

    def start(*command):
        return subprocess.Popen(
            [sys.executable, *command], cwd=tmp_path, env=environment, text=True,
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
