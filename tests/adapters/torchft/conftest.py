"""What these tests need: torch and torchft from PyPI, and examples to import."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("torch")

with warnings.catch_warnings():  # of its dependencies, at import
    warnings.simplefilter("ignore")
    pytest.importorskip("torchft")

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))
