"""A mesh on Monarch: an agent in a Monarch proc, the mesh's processes below it.

Needs torchmonarch, which the development environment leaves out: pip install torchmonarch==0.7.0.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from capabilities import require

from transport.testing.processes import run_program

SUPPORT = Path(__file__).resolve().parents[2] / "support"

# A process of its own: Monarch's runtime stays in the one that has used it.
PROGRAM = """
import sys
sys.path.append(sys.argv[1])
from mesh_hosts import count_on, exercise
from transport.mesh.hosts.monarch import MonarchHost
count_on("monarch")
exercise(MonarchHost(processes=3), 3)
print("well")
"""


def test_processes_start_die_and_are_replaced():
    if importlib.util.find_spec("monarch") is None:
        require("monarch", "torchmonarch is not installed")
    code, out, err = run_program(PROGRAM, str(SUPPORT), timeout=120)
    assert code == 0, err
    assert "well" in out
