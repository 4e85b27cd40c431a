"""`transport launch`: what starts a program on every node, printed or run."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import click

from transport.cli.launch_render import RENDERERS, RUNNERS, Job
from transport.cli.relay import run
from transport.errors import InvalidUse, Unavailable

_COUNT = click.IntRange(1, 100_000)


@click.command("launch", context_settings={"ignore_unknown_options": True})
@click.option("--on", type=click.Choice(list(RENDERERS)), required=True,
              help="What starts processes on the nodes.")  # fmt: skip
@click.option("--nodes", type=_COUNT, default=1, show_default=True, help="How many nodes.")
@click.option("--procs-per-node", type=_COUNT, default=1, show_default=True,
              help="Processes of the mesh on each.")  # fmt: skip
@click.option("--gpus-per-node", type=click.IntRange(0, 1000), default=0, show_default=True,
              help="GPUs to ask for on each; 0 asks for none.")  # fmt: skip
@click.option("--gpu-type", default="", metavar="NAME", help="As H100; SkyPilot needs it.")
@click.option("--gpu-resource", default="nvidia.com/gpu", show_default=True, metavar="NAME",
              help="Kubernetes's name of a GPU.")  # fmt: skip
@click.option("--image", default="", metavar="NAME", help="Kubernetes's container image.")
@click.option("--name", default="", metavar="NAME", help="The job's; by default the program's.")
@click.option("--run", "runs", is_flag=True, help="Run it instead of printing it.")
@click.argument("program", nargs=-1, required=True, metavar="PROGRAM [ARGUMENTS]...",
                type=click.UNPROCESSED)  # fmt: skip
def launch(
    on: str,
    nodes: int,
    procs_per_node: int,
    gpus_per_node: int,
    gpu_type: str,
    gpu_resource: str,
    image: str,
    name: str,
    runs: bool,
    program: tuple[str, ...],
) -> None:
    """Print what starts PROGRAM on every node, or run it.

    What is no option of this command goes to the program; after -- everything does. In the program
    `transport.processes()` finds all of the job's processes: in the first process it returns a
    mesh of them, in the others it serves until the first is through. On Ray the program says how
    many processes it wants.
    """
    job = Job(
        name or _name_of(program[0]),
        program,
        nodes,
        procs_per_node,
        gpus_per_node,
        gpu_type,
        gpu_resource,
        image,
    )
    text = RENDERERS[on](job)
    if runs:
        sys.exit(_run(on, text))
    click.echo(text, nl=False)


def _name_of(program: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", Path(program).stem.lower()).strip("-") or "mesh"


def _run(on: str, text: str) -> int:
    command = RUNNERS[on]
    if shutil.which(command[0]) is None:
        raise Unavailable(f"there is no command {command[0]} here", "print it, without --run")
    if on == "torchrun" and "NODE_RANK" in text:
        raise InvalidUse("torchrun is started on every node: print it, and run it there")
    if "{}" not in command:
        return run(command, text)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        filled = [file.name if part == "{}" else part for part in command]
        environment = {**os.environ, "TRANSPORT_SECRET": secrets.token_hex(32)}
        return run(filled, environment=environment)
