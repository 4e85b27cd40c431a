"""The two programs of docs/tutorial/first-transfer.md, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "first-transfer.md"


def test_the_first_transfer(tmp_path):
    programs = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in programs] == ["owner.py", "reader.py"]
    for name, text in programs:
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}

    def start(*command):
        return subprocess.Popen(
            [sys.executable, *command], cwd=tmp_path, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

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
