"""What is installed for the demo alone: the model, and no torch."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import requires
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_extra_of_the_demo_is_small():
    lines = [line for line in requires("tensor-transport") or [] if "demo" in line]
    assert [re.split(r"\W", line)[0] for line in lines] == ["safetensors"]


def test_make_demo_takes_the_models_package_without_what_it_depends_on(tmp_path):
    """That would be torch, by sentence-transformers."""
    venv = tmp_path / "venv"
    words = ["make", "--dry-run", f"VENV={venv}", f"{venv}/.demo"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installed = re.findall(r"pip (?:-\S+ )*install (.*)$", told, re.MULTILINE)
    assert "--no-deps --group demo" in installed
    assert not [line for line in installed if re.search("dev|torch|minilm", line)]
