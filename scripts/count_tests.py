"""Sums up a folder of reports in one line: JUnit files and the C runner's `native X: ...` lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

NATIVE = re.compile(r"^native \w+: (\d+) passed, (\d+) failed(?:, (\d+) skipped)?", re.MULTILINE)


def count(folder: Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) over all reports in the folder."""
    passed = failed = skipped = 0
    for report in folder.rglob("*.xml"):
        for suite in ElementTree.parse(report).iter("testsuite"):
            bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            missed = int(suite.get("skipped", 0))
            failed, skipped = failed + bad, skipped + missed
            passed += int(suite.get("tests", 0)) - bad - missed
    for log in folder.glob("*.log"):
        for found in NATIVE.finditer(log.read_text(errors="replace")):
            passed += int(found[1])
            failed += int(found[2])
            skipped += int(found[3] or 0)
    return passed, failed, skipped


if __name__ == "__main__":
    print("tests: {} passed, {} failed, {} skipped".format(*count(Path(sys.argv[1]))))
