"""Who started this process, as which of how many, and where the first one is. Imports errors only.

One table of the variables that launchers set. Sources: torchrun, torch.distributed.run and
local_elastic_agent.py; srun(1), "OUTPUT ENVIRONMENT VARIABLES"; Kubernetes, "Indexed Job";
LeaderWorkerSet, "Environment variables"; SkyPilot, "Distributed jobs"; mpirun(1) of Open MPI.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.errors import InvalidUse, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PORTS = range(20000, 30000)  # below those that Linux gives to outgoing connections
_TRIES = 8
_STEP = 619  # a prime; two jobs whose first ports are equal differ in none of the others


@dataclass(frozen=True, slots=True)
class Launcher:
    """A row: the variables of one launcher, the first that is set counts in each list."""

    name: str
    marks: tuple[str, ...]  # set by this launcher, all of them
    index: str
    count: tuple[str, ...]
    first: tuple[str, ...]  # the host of index 0, or a list of all hosts
    job: tuple[str, ...]  # what tells two jobs of one user apart; all that are set


LAUNCHERS = (
    Launcher(
        "torchrun",
        ("TORCHELASTIC_RUN_ID", "RANK"),
        "RANK",
        ("WORLD_SIZE",),
        ("MASTER_ADDR",),
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"),
    ),
    Launcher(
        "skypilot",
        ("SKYPILOT_NODE_RANK",),
        "SKYPILOT_NODE_RANK",
        ("SKYPILOT_NUM_NODES",),
        ("SKYPILOT_NODE_IPS",),
        ("SKYPILOT_TASK_ID",),
    ),
    Launcher(
        "lws",
        ("LWS_WORKER_INDEX",),
        "LWS_WORKER_INDEX",
        ("LWS_GROUP_SIZE",),
        ("LWS_LEADER_ADDRESS",),
        ("LWS_LEADER_ADDRESS",),
    ),
    Launcher(
        "kubernetes",  # an Indexed Job, and a JobSet of them; its size is in no variable of its own
        ("JOB_COMPLETION_INDEX",),
        "JOB_COMPLETION_INDEX",
        ("WORLD_SIZE", "PET_NNODES"),
        ("MASTER_ADDR", "PET_MASTER_ADDR"),
        ("MASTER_ADDR", "PET_MASTER_ADDR"),
    ),
    Launcher(
        "slurm",
        ("SLURM_STEP_ID", "SLURM_PROCID"),
        "SLURM_PROCID",
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    Launcher(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        (),
        ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"),
    ),
    Launcher(  # whatever sets what torch.distributed's env:// reads, as Kubeflow's operators do
        "env",
        ("RANK", "WORLD_SIZE"),
        "RANK",
        ("WORLD_SIZE",),
        ("MASTER_ADDR",),
        ("MASTER_ADDR", "MASTER_PORT"),
    ),
)


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launcher told this process. `first` is a host name or number, "" if it told none."""

    launcher: str
    index: int
    count: int
    first: str
    job: str


def recognise(environment: Mapping[str, str]) -> Launched:
    """The first row whose marks are set. Raises Unavailable where no launcher did, InvalidUse for
    variables that make no sense.
    """
    for row in LAUNCHERS:
        if all(environment.get(mark) for mark in row.marks):
            return _read(row, environment)
    raise Unavailable(
        "no launcher started this process: none of its variables is set",
        "start the program with `transport launch`, torchrun, srun or another that "
        "docs/howto/launch.md lists",
    )


def _read(row: Launcher, environment: Mapping[str, str]) -> Launched:
    index = _number(row, row.index, environment[row.index])
    names = [name for name in row.count if environment.get(name)]
    if not names:
        raise Unavailable(
            f"{row.name} does not say how many processes the job has", f"set {row.count[0]}"
        )
    count = _number(row, names[0], environment[names[0]])
    if not index < count:
        raise InvalidUse(f"{row.index}={index} and {names[0]}={count} do not fit")
    hosts = next((environment[name] for name in row.first if environment.get(name)), "")
    job = "/".join(environment[name] for name in row.job if environment.get(name))
    return Launched(row.name, index, count, first_host(hosts), f"{row.name} {job}"[:1024])


def _number(row: Launcher, name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise InvalidUse(f"{name}={text!r}, by which {row.name} should count, is no number")
    return int(text)


_RANGE = re.compile(r"([^\[\],\s]*)\[(\d+)[^\]]*\]([^\[\],\s]*)")


def first_host(hosts: str) -> str:
    """Of "node[07-12,20],gpu3" (SLURM), of one a line (SkyPilot), or of one."""
    hosts = hosts.strip()
    found = _RANGE.match(hosts)
    if found:
        before, number, after = found.groups()
        return first_host(before + number + after + hosts[found.end() :])
    return re.split(r"[,\s]", hosts, maxsplit=1)[0]


def ports_of(job: str) -> Sequence[int]:
    """Where the first process listens and the others look, in this order."""
    start = zlib.crc32(job.encode())
    return [_PORTS[(start + _STEP * n) % len(_PORTS)] for n in range(_TRIES)]
