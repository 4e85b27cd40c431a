"""What starts one process a node on each kind of cluster, as text. Pure; imports errors only.

Each process that is started runs the program; TRANSPORT_MESH_ON and TRANSPORT_MESH_PROCESSES tell
`transport.processes()` what to do. Sources: sbatch(1), srun(1); torchrun's documentation; the API
reference of Kubernetes, batch/v1 Job and core/v1 Service; SkyPilot, "Task YAML"; "Ray Jobs CLI".
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass

from transport.errors import InvalidUse

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
_RDZV_PORT = 29500


@dataclass(frozen=True, slots=True)
class Job:
    """What to start. `command`: the program and its arguments, for Python."""

    name: str
    command: tuple[str, ...]
    nodes: int
    procs_per_node: int
    gpus_per_node: int = 0
    gpu_type: str = ""  # SkyPilot's name of it, as H100
    gpu_resource: str = "nvidia.com/gpu"  # Kubernetes's
    image: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidUse(
                f"a job's name has small letters, digits and hyphens, not {self.name!r}: --name"
            )

    @property
    def shell(self) -> str:
        return shlex.join(("python", *self.command))

    def settings(self, on: str = "ranks") -> dict[str, str]:
        return {
            "TRANSPORT_MESH_ON": on,
            "TRANSPORT_MESH_PROCESSES": str(self.procs_per_node),
        }


def torchrun(job: Job) -> str:
    """The same on every node: torchrun itself starts a process for each rank."""
    program = shlex.join(job.command)
    lines = ["#!/bin/sh", "export TRANSPORT_MESH_ON=ranks"]
    if job.nodes == 1:
        lines += [
            f"exec torchrun --standalone --nproc-per-node={job.procs_per_node} {program}",
        ]
        return "\n".join(lines) + "\n"
    return "\n".join(
        [
            lines[0],
            "# On every node, with NODE_RANK from 0 and MASTER_ADDR, the host of node 0. All nodes",
            "# need the same secret: TRANSPORT_SECRET_FILE, or a home directory that they share.",
            lines[1],
            f"exec torchrun --nnodes={job.nodes} --nproc-per-node={job.procs_per_node} \\",
            '  --node-rank="${NODE_RANK:?}" --master-addr="${MASTER_ADDR:?}" \\',
            f'  --master-port="${{MASTER_PORT:-{_RDZV_PORT}}}" {program}',
            "",
        ]
    )


def slurm(job: Job) -> str:
    """A batch script; the secret is the user's own file, in the home that nodes share."""
    head = [
        "#!/bin/bash",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.nodes}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --no-kill",
    ]
    if job.gpus_per_node:
        kind = f"{job.gpu_type.lower()}:" if job.gpu_type else ""
        head.append(f"#SBATCH --gpus-per-node={kind}{job.gpus_per_node}")
    exports = [f"export {name}={value}" for name, value in job.settings().items()]
    # When a node is lost the owner goes on without it; srun must not end the others.
    return "\n".join(
        [*head, "", *exports, f"exec srun --no-kill --kill-on-bad-exit=0 --wait=0 {job.shell}", ""]
    )


def ray(job: Job) -> str:
    """The program is the driver; it says how many processes, a bundle for each node's share."""
    environment = json.dumps({"env_vars": job.settings("ray")})
    return (
        "#!/bin/sh\n"
        f"# Needs RAY_ADDRESS. The program asks for {job.nodes * job.procs_per_node} processes:\n"
        f"# transport.processes({job.nodes * job.procs_per_node})\n"
        f"exec ray job submit --working-dir . --runtime-env-json {shlex.quote(environment)} \\\n"
        f"  -- {job.shell}\n"
    )


def kubernetes(job: Job) -> str:
    """A headless Service for the pods' names, and an Indexed Job with a pod a node."""
    if not job.image:
        raise InvalidUse("Kubernetes needs --image, with the program and this library in it")
    environment = {
        "WORLD_SIZE": str(job.nodes),
        "MASTER_ADDR": f"{job.name}-0.{job.name}",
        **job.settings(),
        "TRANSPORT_SECRET_FILE": "/etc/tensor-transport/secret",
    }
    variables = "\n".join(
        f"            - {{name: {name}, value: {json.dumps(value)}}}"
        for name, value in environment.items()
    )
    limits = (
        f"\n          resources:\n            limits: {{{job.gpu_resource}: {job.gpus_per_node}}}"
        if job.gpus_per_node
        else ""
    )
    return _KUBERNETES.format(
        name=job.name,
        nodes=job.nodes,
        image=json.dumps(job.image),
        command=json.dumps(["python", *job.command]),
        variables=variables,
        limits=limits,
    )


_KUBERNETES = """\
# The secret comes first, once:
#   kubectl create secret generic {name}-secret --from-literal=secret="$(openssl rand -hex 32)"
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  clusterIP: None  # the pods' names resolve to their own addresses
  publishNotReadyAddresses: true
  selector: {{batch.kubernetes.io/job-name: {name}}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  completions: {nodes}
  parallelism: {nodes}
  completionMode: Indexed
  backoffLimitPerIndex: 3  # a pod that is lost comes back, and the mesh uses it again
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      affinity:  # a pod a node
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector: {{matchLabels: {{batch.kubernetes.io/job-name: {name}}}}}
      containers:
        - name: mesh
          image: {image}
          command: {command}
          env:
{variables}{limits}
          volumeMounts:
            - {{name: secret, mountPath: /etc/tensor-transport, readOnly: true}}
      volumes:
        - name: secret
          secret: {{secretName: {name}-secret, defaultMode: 0400}}
"""


def skypilot(job: Job) -> str:
    """A task of SkyPilot: num_nodes nodes, the program on each."""
    accelerators = ""
    if job.gpus_per_node:
        if not job.gpu_type:
            raise InvalidUse("SkyPilot needs the GPU's name: --gpu-type H100")
        accelerators = f"\nresources:\n  accelerators: {job.gpu_type}:{job.gpus_per_node}\n"
    variables = "\n".join(f"  {name}: {json.dumps(v)}" for name, v in job.settings().items())
    return _SKYPILOT.format(
        name=job.name,
        nodes=job.nodes,
        accelerators=accelerators,
        variables=variables,
        shell=job.shell,
    )


_SKYPILOT = """\
# sky launch --secret TRANSPORT_SECRET="$(openssl rand -hex 32)" FILE
name: {name}
num_nodes: {nodes}
{accelerators}
workdir: .

envs:
{variables}

secrets:
  TRANSPORT_SECRET: null  # has no default: each launch says one

setup: |
  pip install tensor-transport

run: |
  {shell}
"""

RENDERERS = {
    "torchrun": torchrun,
    "slurm": slurm,
    "ray": ray,
    "kubernetes": kubernetes,
    "skypilot": skypilot,
}

# What takes the text: on its standard input, or as a file ("{}") where it reads none.
RUNNERS: dict[str, tuple[str, ...]] = {
    "torchrun": ("sh",),
    "slurm": ("sbatch",),
    "ray": ("sh",),
    "kubernetes": ("kubectl", "apply", "-f", "-"),
    "skypilot": ("sky", "launch", "--secret", "TRANSPORT_SECRET", "{}"),
}
