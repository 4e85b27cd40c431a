from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"


def load_generator():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["reference/settings.md", "reference/cli.md", "reference/errors.md"]
)
def test_a_generated_page_says_what_the_code_says(name):
    written = (DOCS / name).read_text()
    assert written == load_generator().PAGES[name](), "run: python docs/generate.py"
