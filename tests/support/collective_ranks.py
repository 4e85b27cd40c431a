"""N ranks of one communicator that uses one-sided transfers, forked from a process with torch.

    python collective_ranks.py MODULE      and on its standard input lines of WORLD FOLDER, with a
                                           pickled job in FOLDER/job; it answers with an exit status

A job is the name of a function in the module and its arguments; it is called with the communicator
before them. What it returned, of each rank, is in FOLDER/<rank>; a rank that kills itself leaves
nothing. To import torch takes longer than most jobs: that process stays for all of a module.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

PATIENCE = 240  # seconds for everything
_stands = {}  # by module


def run_ranks(world, module, job):
    """(function, *arguments) -> what each of `world` ranks returned; None: it was killed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job").write_bytes(pickle.dumps(job))
        rule = {"kind": "*", "device": "cpu", "least": 0, "carrier": "onesided"}
        Path(folder, "table").write_text(json.dumps({"schema": 1, "rules": [rule]}))
        stand = _stands.get(module) or _stand(module)
        stand.stdin.write(f"{world} {folder}\n")
        came = select.select([stand.stdout], [], [], PATIENCE)[0]
        answer = stand.stdout.readline().strip() if came else ""
        if not answer:  # it has ended, or hangs
            _leave(module)
        if answer != "0":
            errors = Path(folder, "errors")
            text = errors.read_text()[-6000:] if errors.exists() else ""
            raise AssertionError(f"the ranks ended with {answer or 'nothing'}: {text}")
        left = [Path(folder, str(rank)) for rank in range(world)]
        return [pickle.loads(file.read_bytes()) if file.exists() else None for file in left]


def _stand(module):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "TRANSPORT_SECRET": "shared by these ranks alone",
    }
    made = _stands[module] = subprocess.Popen(
        [sys.executable, __file__, module],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    atexit.register(_leave, module)
    return made


def _leave(module):
    stand = _stands.pop(module, None)
    if stand is not None:
        stand.kill()
        stand.communicate()


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
    module = importlib.import_module(sys.argv[1])
    for line in sys.stdin:
        world, folder = line.split()
        child = os.fork()
        if child == 0:
            _world(int(world), module, Path(folder))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _world(world, module, folder):
    """A process that waits for its ranks; never returns."""
    errors = os.open(folder / "errors", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(errors, descriptor)
    os.environ["TRANSPORT_COLLECTIVES_TABLE"] = str(folder / "table")
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _rank(rank, world, module, folder)
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
            os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _main()
