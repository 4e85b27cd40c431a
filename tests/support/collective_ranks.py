"""N ranks of one communicator that uses one-sided transfers, forked from a process with torch.

    python collective_ranks.py WORLD MODULE FOLDER      with a pickled job in FOLDER/job

A job is the name of a function in the module and its arguments; it is called with the communicator
before them. What it returned, of each rank, is in FOLDER/<rank>; a rank that kills itself leaves
nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

PATIENCE = 240  # seconds for everything


def run_ranks(world, module, job):
    """(function, *arguments) -> what each of `world` ranks returned; None: it was killed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job").write_bytes(pickle.dumps(job))
        rule = {"kind": "*", "device": "cpu", "least": 0, "carrier": "onesided"}
        Path(folder, "table").write_text(json.dumps({"schema": 1, "rules": [rule]}))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "TRANSPORT_COLLECTIVES_TABLE": f"{folder}/table",
            "TRANSPORT_SECRET": "shared by these ranks alone",
        }
        done = subprocess.run(
            [sys.executable, __file__, str(world), module, folder],
            env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-6000:]
        left = [Path(folder, str(rank)) for rank in range(world)]
        return [pickle.loads(file.read_bytes()) if file.exists() else None for file in left]


def _rank(rank, world, module, folder):
    import torch

    from transport.collectives.communicator import Communicator

    signal.alarm(PATIENCE)
    torch.set_num_threads(1)
    call, *arguments = pickle.loads((folder / "job").read_bytes())
    at = f"unix:{folder}/door"
    with Communicator.join("t", rank, world, at, deadline=60, operation_deadline=30) as group:
        result = getattr(module, call)(group, *arguments)
        (folder / str(rank)).write_bytes(pickle.dumps(result))


def _main():
    import torch  # once for all ranks

    assert torch.get_num_threads() == 1
    world, name, folder = sys.argv[1:]
    module = importlib.import_module(name)
    children = []
    for rank in range(int(world)):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _rank(rank, int(world), module, Path(folder))
                code = 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
        children.append(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status not in (0, signal.SIGKILL):
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


if __name__ == "__main__":
    _main()
