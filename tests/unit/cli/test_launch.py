"""What `transport launch` prints: checked by the schemas of who reads it, and kept as examples."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from transport.cli import commands
from transport.cli.launch_render import RENDERERS, RUNNERS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "launch"
TASK = json.loads((ROOT / "tests" / "support" / "skypilot_task.schema.json").read_text())
TWO = ["--nodes", "2", "--procs-per-node", "4", "--gpus-per-node", "4", "--gpu-type", "H100"]
IMAGE = ["--image", "registry.example/train:1"]
FILES = {
    "kubernetes": "kubernetes.yaml",
    "ray": "ray.sh",
    "skypilot": "skypilot.yaml",
    "slurm": "slurm.sh",
    "torchrun": "torchrun.sh",
}


def launch(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(commands, ["launch", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def rendered(on: str) -> str:
    return launch("--on", on, *TWO, *IMAGE, "train.py", "--steps", "3")


@pytest.mark.parametrize("on", RENDERERS)
def test_the_examples_are_what_it_prints(on: str):
    assert (EXAMPLES / FILES[on]).read_text() == rendered(on)


def test_kubernetes_takes_its_objects():
    service, job = yaml.safe_load_all(rendered("kubernetes"))
    for thing in (service, job):
        kubernetes_validate.validate(thing, "1.36", strict=True)
    pod = job["spec"]["template"]["spec"]
    assert service["metadata"]["name"] == pod["subdomain"]
    environment = {row["name"]: row["value"] for row in pod["containers"][0]["env"]}
    assert environment["WORLD_SIZE"] == str(job["spec"]["completions"]) == "2"
    assert environment["TRANSPORT_MESH_PROCESSES"] == "4"
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert pod["volumes"][0]["secret"]["defaultMode"] == 0o400
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**job, "spec": {"completions": 2}}, "1.36", strict=True)


def test_skypilot_takes_its_task():
    task = yaml.safe_load(rendered("skypilot"))
    jsonschema.validate(task, TASK)
    assert task["num_nodes"] == 2
    assert task["resources"] == {"accelerators": "H100:4"}
    without = launch("--on", "skypilot", "train.py")
    jsonschema.validate(yaml.safe_load(without), TASK)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**task, "num_nodes": "2"}, TASK)


@pytest.mark.parametrize("on", ["torchrun", "slurm", "ray"])
@pytest.mark.parametrize("nodes", ["1", "8"])
def test_scripts_are_shell(on: str, nodes: str):
    text = launch("--on", on, "--nodes", nodes, "my train.py", "--to=a b", "--", "--run")
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    assert shlex.quote("my train.py") in text


def test_a_programs_own_options_reach_it():
    text = launch("train.py", "--on", "slurm", "--lr", "0.1", "--", "--nodes", "9")
    assert "#SBATCH --nodes=1\n" in text
    assert "python train.py --lr 0.1 --nodes 9\n" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--on", "kubernetes", "train.py"], "--image"),
        (["--on", "skypilot", "--gpus-per-node", "8", "train.py"], "--gpu-type"),
        (["--on", "slurm", "--name", "Two words", "train.py"], "--name"),
        (["--on", "torchrun", "--nodes", "2", "--run", "train.py"], "every node"),
    ],
)
def test_what_is_missing_is_said(arguments: list[str], words: str):
    result = CliRunner().invoke(commands, ["launch", *arguments])
    assert words in str(result.exception)


@pytest.mark.parametrize("on", RENDERERS)
def test_run_gives_it_to_who_reads_it(on: str, tmp_path: Path):
    """The command is stood in for by one that keeps what it is given."""
    command = tmp_path / RUNNERS[on][0]
    kept = tmp_path / "kept"
    command.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "text = sys.stdin.read() if not sys.argv[-1].endswith('.yaml') "
        "else pathlib.Path(sys.argv[-1]).read_text()\n"
        f"pathlib.Path({str(kept)!r}).write_text(text)\n"
        "sys.exit(3)\n"
    )
    command.chmod(0o755)
    given = ["--on", on, *IMAGE, "--gpu-type", "H100", "train.py"]
    result = CliRunner(env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}).invoke(
        commands, ["launch", "--run", *given]
    )
    assert result.exit_code == 3, result.output
    assert kept.read_text() == launch(*given)


@contextlib.contextmanager
def launched(tmp_path: Path, program: str, *before: str) -> Iterator[subprocess.Popen[str]]:
    """`transport launch --run` with a torchrun that is this program, once it has said "runs"."""
    command = tmp_path / "torchrun"
    command.write_text(f"#!{sys.executable}\n{program}")
    command.chmod(0o755)
    launch = [sys.executable, "-m", "transport", "launch", "--on", "torchrun", "--run", "train.py"]
    with subprocess.Popen(
        [*before, *launch],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stdout
        assert launcher.stdout.readline() == "runs\n"
        yield launcher


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("ending", ["exit", "signal"])
def test_signals_reach_what_runs_and_its_end_is_the_launchers(
    sent: signal.Signals, ending: str, tmp_path: Path
):
    program = (
        "import signal, sys\n"
        f"sent, ending = {int(sent)}, {ending!r}\n"
        "signal.signal(sent, signal.SIG_DFL if ending == 'signal' else lambda *_: sys.exit(7))\n"
        "print('runs', flush=True)\n"
        "signal.pause()\n"
    )
    with launched(tmp_path, program) as launcher:
        launcher.send_signal(sent)
        assert launcher.wait(60) == (7 if ending == "exit" else 128 + sent)


@pytest.mark.slow
def test_what_runs_ends_when_the_launcher_is_killed(tmp_path: Path):
    program = (
        "import os, pathlib, signal, sys\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('runs', flush=True)\n"
        "signal.pause()\n"
    )
    with launched(tmp_path, program) as launcher:
        runs = os.pidfd_open(int((tmp_path / "pid").read_text()))
        launcher.kill()
        assert select.select([runs], [], [], 60)[0]  # it has ended
        os.close(runs)


def test_what_nohup_ignores_is_not_passed_on(tmp_path: Path):
    program = (
        "import signal, sys\n"
        "for number in (signal.SIGHUP, signal.SIGTERM):\n"
        "    signal.signal(number, lambda number, _: sys.exit(number))\n"
        "print('runs', flush=True)\n"
        "signal.pause()\n"
    )
    ignoring = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    with launched(tmp_path, program, *ignoring) as launcher:
        launcher.send_signal(signal.SIGHUP)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(60) == signal.SIGTERM


def test_a_command_that_is_not_there_is_named(tmp_path: Path):
    result = CliRunner(env={"PATH": str(tmp_path)}).invoke(
        commands, ["launch", "--on", "slurm", "--run", "train.py"]
    )
    assert "there is no command sbatch" in str(result.exception)
