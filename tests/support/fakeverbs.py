"""The double of libibverbs (native/fakes/fakeverbs), as a test handles it.

May import the standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

LIBRARY = str(Path(os.environ["TN_FAKES"]) / "fakeverbs.so")
