"""The programs of docs/tutorial/first-mesh.md, run as they stand there, print what stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).resolve().parents[2] / "docs/tutorial/first-mesh.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TEXT, re.DOTALL))
OUTPUTS = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize(("name", "output"), list(zip(PROGRAMS, OUTPUTS)))
def test_a_program(name, output, tmp_path):
    path = tmp_path / name
    path.write_text(PROGRAMS[name])
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout == output


def test_there_are_three():
    assert len(PROGRAMS) == len(OUTPUTS) == 3
