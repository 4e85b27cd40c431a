"""N ranks of torch.distributed, over gloo if not told otherwise, forked from one that has torch.

    python torch_world.py WORLD MODULE FOLDER BACKEND       with pickled jobs in FOLDER/jobs

A job is the name of a function in the module and its arguments. Every rank does all jobs and leaves
what they returned in FOLDER/<rank>. May import the standard library and torch. Spawning each rank
afresh, or for each job, would cost seconds every time.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

PATIENCE = 120  # seconds for everything


def run_ranks(world, module, jobs, backend="gloo"):
    """{name: (function, *arguments)} -> {name: what each of `world` ranks returned}."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "jobs").write_bytes(pickle.dumps(jobs))
        command = [sys.executable, __file__, str(world), module, folder, backend]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        ranks = [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(world)]
    return {name: [rank[name] for rank in ranks] for name in jobs}


def _rank(rank, world, module, folder, backend):
    import torch.distributed

    if backend == "transport":
        import transport.adapters.torch_distributed  # noqa: F401  (torch 2.13 wants it)

    signal.alarm(PATIENCE)  # whoever waits for this rank may be gone by then
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), world)
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=world)
    jobs = pickle.loads((folder / "jobs").read_bytes())
    done = {name: getattr(module, call)(*about) for name, (call, *about) in jobs.items()}
    (folder / str(rank)).write_bytes(pickle.dumps(done))
    torch.distributed.destroy_process_group()


def _main():
    world, name, folder, backend = sys.argv[1:]
    module = importlib.import_module(name)
    children = []
    for rank in range(int(world)):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _rank(rank, int(world), module, Path(folder), backend)
                code = 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
        children.append(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:  # the others would wait for it until their own time-out
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


if __name__ == "__main__":
    _main()
