"""benchmarks/ is no part of the package. Last on the path: a sanitized build must come first."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).parents[3])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)
