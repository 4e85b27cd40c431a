"""Many actors on one machine, and how fast one more is there, as JSON.

python -m benchmarks.mesh.crowd [--actors 200] [--rounds 3]

- crowd: actors without tensors are spawned, each answers one call, all are stopped. Seconds are of
  CLOCK_MONOTONIC; memory is the sum of their proportional shares (Pss of proc_pid_smaps_rollup(5))
  with the zygote's, after the answer. `left` counts what this process has more afterwards than
  before: descriptors, threads, shared memory in /dev/shm, child processes.
- killed: the owner of a crowd gets SIGKILL; seconds until the last of its processes is gone.
- torch: seconds until the first process with torch imported answers, in a mesh of its own (cold); a
  fresh interpreter each (spawn); and in a mesh that runs, of one more process: forked from the
  zygote, or taken from the spares.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transport
from transport.mesh.hosts.local import LocalHost
from transport.mesh.process import Start

if TYPE_CHECKING:
    from collections.abc import Callable


class Quiet(transport.Actor):
    @transport.endpoint
    def pid(self) -> int:
        return os.getpid()


def crowd(actors: int) -> dict[str, Any]:
    before = _possessions()
    began = time.monotonic()
    mesh = transport.local(actors)
    started = time.monotonic()
    quiet = mesh.spawn("quiet", Quiet)
    spawned = time.monotonic()
    pids = quiet.pid.call().get(120).values()
    answered = time.monotonic()
    memory = _memory(pids)
    stopping = time.monotonic()
    mesh.stop(60)
    stopped = time.monotonic()
    after = _possessions()
    return {
        "start_s": round(started - began, 3),
        "spawn_s": round(spawned - started, 3),
        "answer_s": round(answered - spawned, 3),
        "stop_s": round(stopped - stopping, 3),
        "memory_mib": round(memory / 2**20),
        "left": {name: after[name] - before[name] for name in before},
        "processes_left": sum(map(_runs, pids)),
    }


def killed(actors: int) -> dict[str, Any]:
    code = (
        "import sys, transport\n"
        "from benchmarks.mesh.crowd import Quiet\n"
        f"mesh = transport.local({actors})\n"
        "pids = mesh.spawn('quiet', Quiet).pid.call().get(120).values()\n"
        "print(mesh._processes.host._nursery._zygote.pid, *pids, flush=True)\n"
        "sys.stdin.readline()\n"
    )
    shm = _shm()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        lives = [os.pidfd_open(pid) for pid in pids]
        began = time.monotonic()
        owner.kill()
        for life in lives:
            select.select([life], [], [], 60)
            os.close(life)
        ended = time.monotonic()
    return {
        "all_gone_s": round(ended - began, 3),
        "processes_left": sum(map(_runs, pids)),
        "shm_left": _shm() - shm,
    }


def torch() -> dict[str, float]:
    def seconds(act: Callable[[], object]) -> float:
        began = time.monotonic()
        act()
        return round(time.monotonic() - began, 4)

    def fresh(method: Any) -> None:
        with transport.local(1, host={"preload": ["torch"], "method": method}) as mesh:
            mesh.spawn("quiet", Quiet).pid.call().get(60)

    report = {"cold_s": seconds(lambda: fresh("fork")), "spawn_s": seconds(lambda: fresh("spawn"))}
    for name, spares in (("fork_s", 0), ("spare_s", 1)):
        report[name] = one_more(spares, seconds)
    return report


def one_more(spares: int, seconds: Callable[[Callable[[], object]], float]) -> float:
    host = LocalHost(preload=["torch"], spares=spares)
    try:
        started = [*host.start([Start(0, "first")])]
        for spare in host._spares:
            spare.begun.result(60)
        taken = seconds(lambda: started.extend(host.start([Start(1, "more")])))
        for process in started:
            process.stop(10)
    finally:
        host.close()
    return taken


def _runs(pid: int) -> bool:
    """A number whose process is gone but not yet reaped by init is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _memory(pids: list[int]) -> int:
    zygote = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    total = 0
    for pid in (*pids, zygote):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def _shm() -> int:
    return sum(1 for _ in Path("/dev/shm").iterdir())


def _possessions() -> dict[str, int]:
    children = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children += int(status.read_text().rpartition(")")[2].split()[1]) == os.getpid()
    return {
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "children": children,
        "shm": _shm(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actors", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    transport.local(1).stop()  # what is made once is made
    rounds = [crowd(options.actors) for _ in range(options.rounds)]
    seconds = {
        key: statistics.median(r[key] for r in rounds) for key in rounds[0] if key.endswith("_s")
    }
    report = {
        "actors": options.actors,
        "cpus": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "crowd": {"median": seconds, "rounds": rounds},
        "killed": killed(options.actors),
        "torch": torch(),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
