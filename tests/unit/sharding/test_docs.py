"""The examples of the how-to page print what the page says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "describe-a-layout.md"


def test_the_examples_are_true():
    blocks = re.findall(r"^```pycon\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    parsed = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    assert len(parsed.examples) > 20
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(parsed, out=said.append)
    assert not said, "".join(said)
