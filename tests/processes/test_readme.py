"""The README's example runs and prints what it says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_example_in_the_readme() -> None:
    pytest.importorskip("torch", reason="torch: the example moves a torch tensor")
    failed, attempted = doctest.testfile(str(README), module_relative=False)
    assert attempted > 10
    assert failed == 0
