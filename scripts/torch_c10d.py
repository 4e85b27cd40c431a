"""Runs torch's own tests of torch.distributed (they ship with torch) over a backend, and writes
docs/reference/torch-c10d.md:

    python scripts/torch_c10d.py [BACKEND] [--only NAME] [--write]

They run in WORLD ranks that are forked from this process, anew after each failure. May import torch
and the package.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

WORLD = 4
LIMIT = 40.0  # seconds for one test
PAGE = Path(__file__).resolve().parents[1] / "docs/reference/torch-c10d.md"


def prepare(backend: str, folder: str) -> None:
    """What torch's tests find in the environment, before they are imported."""
    os.environ.update(
        BACKEND=backend,
        WORLD_SIZE=str(WORLD),
        TEMP_DIR=folder,
        MASTER_ADDR="127.0.0.1",
        OMP_NUM_THREADS="1",
        TORCH_CPP_LOG_LEVEL="ERROR",
        INIT_METHOD=f"file://{folder}/shared",
    )
    for name in ("barrier", "test_dir", "init_dir"):
        (Path(folder) / name).mkdir(exist_ok=True)


def case_class() -> Any:
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import DistTestCases, MultiProcessTestCase
    from torch.testing._internal.distributed import distributed_test

    import transport.adapters.torch_distributed  # noqa: F401

    DistTestCases.backend_feature["ddp"].add("transport")
    assert dist.is_available()

    class Case(distributed_test.DistributedTest._DistTestBase, MultiProcessTestCase):
        world_size = str(WORLD)  # type: ignore[assignment]  # as torch's own tests have it
        init_method = property(lambda self: f"file://{self.file_name}")

    return Case


def rank_main(case: Any, rank: int, folder: Path, orders: Any) -> None:
    """One rank, for as many tests as it is told."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed import distributed_test

    torch.set_num_threads(1)
    barrier: Any = distributed_test.Barrier
    barrier.init()
    dist.init_process_group(
        os.environ["BACKEND"], init_method=f"file://{folder}/store", world_size=WORLD, rank=rank
    )
    while (name := orders.recv()) is not None:
        orders.send(one_test(case, name, rank, folder))
    dist.destroy_process_group()


def one_test(case: Any, name: str, rank: int, folder: Path) -> tuple[str, str]:
    """("passed" | "failed" | "skipped", why), on one rank."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    skips = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    test = case(name)
    test.rank, test.file_name = rank, str(folder / "store")
    test._barrier()
    try:
        getattr(test, name)()
        test._barrier()
    except unittest.SkipTest as error:
        return "skipped", str(error).splitlines()[0]
    except SystemExit as error:
        return "skipped", skips.get(int(error.code or 0), str(error.code)).splitlines()[0]
    except BaseException as error:
        traceback.print_exc()
        text = str(error).strip().splitlines()
        return "failed", f"{type(error).__name__}: {text[0] if text else ''}"[:150]
    return "passed", ""


class World:
    """The ranks, which live until a test fails."""

    def __init__(self, case: Any, folder: Path) -> None:
        for path in [*folder.glob("barrier/*"), *folder.glob("test_dir/*"), folder / "store"]:
            path.unlink(missing_ok=True)
        self.pipes, self.children = [], []
        for rank in range(WORLD):
            ours, theirs = multiprocessing.Pipe()
            child = os.fork()
            if not child:
                _be_rank(case, rank, folder, theirs)
            theirs.close()
            self.pipes.append(ours)
            self.children.append(child)

    def run(self, name: str) -> tuple[str, str]:
        for pipe in self.pipes:
            pipe.send(name)
        end = time.monotonic() + LIMIT
        found: list[tuple[str, str]] = []
        for pipe in self.pipes:
            if any(state == "failed" for state, _ in found):
                end = min(end, time.monotonic() + 3.0)
            try:
                if pipe.poll(max(end - time.monotonic(), 0.0)):
                    found.append(pipe.recv())
            except (EOFError, OSError):
                found.append(("failed", "a rank ended"))
        failed = [each for each in found if each[0] == "failed"]
        if failed or len(found) < WORLD:
            return failed[0] if failed else ("failed", f"not over after {LIMIT:.0f} s")
        return min(found)  # passed where one passed

    def end(self) -> None:
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _be_rank(case: Any, rank: int, folder: Path, orders: Any) -> None:
    """In the child; does not return."""
    os.setpgid(0, 0)
    with (folder / f"log.{rank}").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            rank_main(case, rank, folder, orders)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def page(backend: str, found: dict[str, tuple[str, str]]) -> str:
    import torch

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    counts = {state: sum(1 for s, _ in found.values() if s == state) for state in STATES}
    tally = ", ".join(f"{counts[state]} {title.lower()}" for state, title in STATES.items())
    text = [
        "# torch's own tests",
        "",
        f"`DistributedTest._DistTestBase`, which ships with torch, on {torch.__version__} over the",
        f"backend `{backend}`: {WORLD} ranks on one machine without a GPU. {tally}.",
        f"Made by `python scripts/torch_c10d.py --write` (needs `expecttest`) at commit {commit}.",
    ]
    for state, title in STATES.items():
        names = [name for name, (each, _) in found.items() if each == state]
        text += ["", f"## {title}", ""]
        if state == "passed":
            text.append(", ".join(f"`{name}`" for name in names))
        else:
            text += ["| test | why |", "| --- | --- |"]
            text += [f"| `{name}` | {_cell(found[name][1])} |" for name in names]
    return "\n".join(text) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


FOR_GPUS = ("cuda", "nccl", "gpu", "multigpu")
STATES = {"passed": "Pass", "failed": "Fail", "skipped": "Do not apply"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", nargs="?", default="transport")
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    found: dict[str, tuple[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare(asked.backend, folder)
        case = case_class()
        names = sorted(name for name in dir(case) if name.startswith("test") and asked.only in name)
        world: World | None = None
        for name in names:
            begun = time.monotonic()
            if any(word in name for word in FOR_GPUS):
                found[name] = "skipped", "is about GPUs"
            else:
                world = world or World(case, Path(folder))
                found[name] = world.run(name)
            state, why = found[name]
            print(f"{state:8} {time.monotonic() - begun:5.1f} s  {name}  {why}", flush=True)
            # A test of timeouts leaves its short one to the groups of the next.
            if world is not None and (state == "failed" or "timeout" in name):
                world.end()
                world = None
        if world is not None:
            world.end()
    if asked.write:
        PAGE.write_text(page(asked.backend, found))
    return int(any(state == "failed" for state, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main())
