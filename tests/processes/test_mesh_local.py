"""Processes of a mesh on this machine: how they start, what they get, and that all of them end."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import resource
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from mesh_hosts import count_on, exercise
from patience import until
from possessions import possessions

import transport
from transport import InvalidUse, Unavailable
from transport.mesh.hosts import local
from transport.mesh.hosts.local import LocalHost
from transport.mesh.process import Cause, Start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transport.mesh.process import Process

PATIENCE = 60.0


def starts(count: int, **environment: str) -> list[Start]:
    return [Start(rank, "actor", environment) for rank in range(count)]


@contextlib.contextmanager
def running(count: int = 1, **options: object) -> Iterator[tuple[LocalHost, list[Process]]]:
    host = LocalHost(**options)  # type: ignore[arg-type]
    try:
        processes = list(host.start(starts(count)))
        yield host, processes
        for process in processes:
            process.stop(PATIENCE)
    finally:
        host.close()


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module that processes can import; its name."""

    def write(text: str) -> str:
        (tmp_path / "mesh_probe.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        return "mesh_probe"

    return write


class Lines:
    """Collects what processes print."""

    def __init__(self) -> None:
        self.queue: queue.Queue[tuple[str, int, str]] = queue.Queue()

    def __call__(self, label: str, stream: int, line: str) -> None:
        self.queue.put((label, stream, line))

    def next(self) -> tuple[str, int, str]:
        return self.queue.get(timeout=PATIENCE)


def wait_gone(*pids: int) -> None:
    """Until no process has these numbers any more."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            life = os.pidfd_open(pid)
            try:
                assert select.select([life], [], [], PATIENCE)[0], f"process {pid} is still there"
            finally:
                os.close(life)


# ------------------------------------------------------------------------------- start and end
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_start_and_end_when_their_link_does(method: str):
    with running(2, method=method) as (_, processes):
        assert [process.rank for process in processes] == [0, 1]
        assert len({process.pid for process in processes}) == 2
        for process in processes:
            assert os.getpgid(process.pid) == process.pid
            process.socket.close()
            assert process.ended.result(PATIENCE) == Cause(code=0)


def test_this_host_does_what_every_host_must():
    exercise(LocalHost(), 3)
    count_on("local")


def test_the_settings_say_where_and_how_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRANSPORT_MESH_PROCESSES", "2")
    with transport.processes() as mesh:
        assert mesh.sizes == {"rank": 2}
    monkeypatch.setenv("TRANSPORT_MESH_ON", "ranks")
    with pytest.raises(Unavailable, match="no launcher"):
        transport.processes()


class Gambler(transport.Actor):
    @transport.endpoint
    def draw(self) -> tuple[float, float, float]:
        import numpy as np
        import torch

        return random.random(), float(np.random.random()), float(torch.rand(1, dtype=torch.float64))

    @transport.endpoint
    def seed(self, number: int) -> None:
        import torch

        torch.manual_seed(number)


def test_forked_processes_draw_their_own_random_numbers():
    pytest.importorskip("torch", reason="torch: its generator is one of them")
    with transport.local(2, host={"preload": ["torch", "numpy"], "method": "fork"}) as mesh:
        gamblers = mesh.spawn("gambler", Gambler)
        for one, other in zip(*gamblers.draw.call().get().values()):
            assert one != other
        gamblers.seed.call(1).get()  # the same again, for who wants that
        one, other = gamblers.draw.call().get().values()
        assert one[2] == other[2]


def test_a_host_that_is_not_there_is_named():
    with pytest.raises(InvalidUse, match="local, ranks, ray, monarch"):
        transport.processes(2, on="slurm")
    with pytest.raises(InvalidUse, match='slurm started it is "ranks"'):
        transport.processes(2, on="slurm")  # type: ignore[arg-type]
    with pytest.raises(InvalidUse, match="how many"):
        transport.processes(on="ray")
    with pytest.raises(InvalidUse, match="how many"):
        transport.processes(2, replica=2)
    with pytest.raises(Unavailable, match="no launcher"):
        transport.processes(on="ranks")


def test_a_killed_process_is_known_by_its_signal():
    with running(3) as (_, processes):
        os.kill(processes[1].pid, signal.SIGTERM)
        assert processes[1].ended.result(PATIENCE) == Cause(signal=signal.SIGTERM)
        processes[2].kill()
        assert processes[2].ended.result(PATIENCE) == Cause(signal=signal.SIGKILL)
        processes[2].kill()  # again: no error
        assert not processes[0].ended.done()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_die_while_they_begin_harm_nobody(method: str):
    host = LocalHost(method=method, logs="discard")
    try:
        for _ in range(10):
            processes = host.start(starts(2))
            for process in processes:
                os.kill(process.pid, signal.SIGKILL)
            for process in processes:
                assert process.ended.result(PATIENCE) == Cause(signal=signal.SIGKILL)
                process.stop(0)
    finally:
        host.close()


def test_a_process_that_does_not_end_is_killed_at_its_deadline(probe):
    never = probe("import atexit\ndef stay():\n    while True: pass\natexit.register(stay)\n")
    with running(preload=[never]) as (_, (process,)):
        process.stop(0.1)
        assert process.ended.result(0) == Cause(signal=signal.SIGKILL)


def test_what_a_process_has_started_ends_with_it(probe):
    lines = Lines()
    parent = probe(
        "import subprocess, sys\n"
        "def begin():\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    print(child.pid, flush=True)\n"
        "begin()\n"
    )
    with running(preload=[parent], method="spawn", logs=lines) as (_, (process,)):
        child = int(lines.next()[2])
        os.kill(child, 0)
        process.kill()
        process.ended.result(PATIENCE)
        wait_gone(child)


def test_starting_and_stopping_leaves_nothing():
    with running(2):
        pass  # whatever is made once is made
    before = possessions()
    for _ in range(3):
        with running(4, spares=1):
            pass
    after = possessions()
    assert (after["descriptors"], after["threads"]) == (before["descriptors"], before["threads"])


# ----------------------------------------------------------------------------------- what they get
REPORT = """
import atexit, os, sys
def report():
    print(*(os.environ.get(name) for name in ("COMMON", "OWN", "CUDA_VISIBLE_DEVICES")),
          *sorted(os.sched_getaffinity(0)), flush=True)
atexit.register(report)
"""


def test_environment_cpus_and_gpus_are_per_process(probe):
    lines = Lines()
    common = {"COMMON": "all", "CUDA_VISIBLE_DEVICES": "5,7"}
    host = LocalHost(
        preload=[probe(REPORT)], environment=common, pin="cores", gpus_per_process=1, logs=lines
    )
    try:
        ranks = [Start(rank, "actor", {"OWN": f"of {rank}"}) for rank in range(2)]
        processes = host.start(ranks)
        for process in processes:
            process.stop(PATIENCE)
    finally:
        host.close()
    told = {label: line for label, _, line in (lines.next(), lines.next())}
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) == 2:
        assert told["actor[0]"] == f"all of 0 5 {cpus[0]}"
        assert told["actor[1]"] == f"all of 1 7 {cpus[1]}"
    assert told["actor[0]"].startswith("all of 0 5 ")
    assert told["actor[1]"].startswith("all of 1 7 ")


def test_output_has_its_source_in_front_and_the_last_lines_are_in_the_cause(probe, capsys):
    chatty = probe(
        "import atexit, sys\n"
        "def speak():\n"
        "    for n in range(60): print('line', n)\n"
        "    sys.stdout.flush()\n"
        "    sys.stderr.write('no end of line'); sys.stderr.flush()\n"
        "atexit.register(speak)\n"
    )
    with running(preload=[chatty]) as (_, (process,)):
        process.stop(PATIENCE)
        logs = process.ended.result(0).logs
    assert len(logs) == 50
    assert set(logs) == {f"line {n}" for n in range(11, 60)} | {"no end of line"}
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"actor[0] line {n}" for n in range(60)]
    assert err.splitlines() == ["actor[0] no end of line"]


def test_an_owner_that_reads_no_output_still_hears_of_ends(probe):
    stuck = queue.Queue[None]()
    flood = probe(
        "import threading\n"
        "def speak():\n"
        "    while True: print('x' * 200)\n"
        "threading.Thread(target=speak, daemon=True).start()\n"
    )
    with running(preload=[flood], logs=lambda *_: stuck.get()) as (_, (process,)):
        process.kill()
        assert process.ended.result(PATIENCE).signal == signal.SIGKILL
        for _ in range(100_000):
            stuck.put(None)


@pytest.mark.parametrize("letter", [b"x", "\u65e5".encode(), b"\xff"])
def test_last_words_of_any_size_harm_nobody(probe, letter):
    """Fifty long lines: of one byte a letter, of three, and of bytes that are no text."""
    line = letter * (4000 // len(letter)) + b"\n"
    loud = probe(
        "import atexit, os\n"
        "def speak():\n"
        f"    for _ in range(50): os.write(1, {line!r})\n"
        "    if os.environ.get('LOUD'): os._exit(3)\n"
        "atexit.register(speak)\n"
    )
    host = LocalHost(preload=[loud], logs="discard")
    try:
        ranks = [Start(0, "actor", {"LOUD": "yes"}), Start(1, "actor")]
        first, second = host.start(ranks)
        first.stop(PATIENCE)
        cause = first.ended.result(0)
        assert (cause.code, cause.logs[-1]) == (3, line[:-1].decode(errors="replace"))
        assert not second.ended.done()
        (again,) = host.start(ranks[1:])
        for process in (second, again):
            process.stop(PATIENCE)
            assert process.ended.result(0).code == 0
    finally:
        host.close()


# --------------------------------------------------------------------------------- preload, spares
def test_a_module_that_cannot_be_imported_is_an_error_with_its_reason(probe):
    broken = probe("raise RuntimeError('no licence')")
    host = LocalHost(preload=[broken])
    try:
        with pytest.raises(Unavailable, match=r"mesh_probe.*RuntimeError: no licence"):
            host.start(starts(1))
    finally:
        host.close()


def test_modules_that_start_threads_are_imported_by_each_process_itself(probe):
    lines = Lines()
    threaded = probe(
        "import os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "print('imported', os.getpid(), flush=True)\n"
    )
    with running(preload=[threaded], logs=lines) as (_, (process,)):
        assert lines.next() == ("actor[0]", 1, f"imported {process.pid}")
    host = LocalHost(preload=[threaded], method="fork")
    try:
        with pytest.raises(Unavailable, match="starts threads"):
            host.start(starts(1))
    finally:
        host.close()


def test_a_spare_takes_the_rank_of_one_that_died():
    with running(2, spares=1) as (host, processes):
        spare = host._spares[0].begun.result(PATIENCE)
        processes[1].kill()
        processes[1].ended.result(PATIENCE)
        (replaced,) = host.start([Start(1, "actor")])
        assert (replaced.rank, replaced.pid) == (1, spare)
        assert host._spares[0].begun.result(PATIENCE) != spare  # there is a spare again
        replaced.stop(PATIENCE)
        assert replaced.ended.result(0) == Cause(code=0)


def test_a_dead_spare_is_not_used():
    with running(1, spares=1) as (host, _):
        spare = host._spares[0]
        os.kill(spare.begun.result(PATIENCE), signal.SIGKILL)
        spare.ended.result(PATIENCE)
        (another,) = host.start([Start(1, "actor")])
        assert another.pid != spare.begun.result(0)
        another.stop(PATIENCE)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_spare_that_does_not_answer_is_put_aside(monkeypatch, method, number):
    with running(2, spares=1, method=method) as (host, _):
        monkeypatch.setattr(local, "_SPARE_TIMEOUT", 0.5)
        spare = host._spares[0]
        os.kill(spare.begun.result(PATIENCE), number)
        (another,) = host.start([Start(1, "actor")])
        assert another.pid != spare.begun.result(0)
        assert spare.ended.result(PATIENCE) == Cause(signal=signal.SIGKILL)
        another.stop(PATIENCE)
        assert another.ended.result(0) == Cause(code=0)


@pytest.mark.parametrize(
    ("module", "reason"),
    [("raise SystemExit('go home')", "SystemExit: go home"), ("raise OSError('\\udcff')", "udcff")],
)
def test_whatever_an_import_raises_is_the_reason(probe, module, reason):
    host = LocalHost(preload=[probe(module)])
    try:
        with pytest.raises(Unavailable, match=reason):
            host.start(starts(1))
    finally:
        host.close()


def test_options_that_make_no_sense_say_so():
    for options in ({"method": "thread"}, {"pin": "gpus"}, {"logs": "file"}):
        with pytest.raises(InvalidUse):
            LocalHost(**options)


# -------------------------------------------------------------------------------- nobody is left
OWNER = """
import os, sys, time
from transport.mesh.hosts.local import LocalHost
from transport.mesh.process import Start

host = LocalHost(preload=sys.argv[2:], spares=1, method=sys.argv[1])
processes = host.start([Start(rank, "actor") for rank in range(3)])
spare = host._spares[0].begun.result(60)
print(host._nursery._zygote.pid, spare, *(process.pid for process in processes), flush=True)
sys.stdin.readline()
child = os.fork()  # must not keep them alive
if child:
    print(child, flush=True)
time.sleep(600)
"""
STUBBORN = """
import signal, subprocess, sys, threading, time
def hold():
    while True: pass
def begin():
    # In a session of its own, which no signal to the group reaches.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=hold).start()  # keeps the interpreter from ending
if "transport.mesh.hosts.zygote" not in " ".join(sys.orig_argv):
    begin()
"""


def descendants(pid: int) -> set[int]:
    """Of a zygote, by /proc: all that it has started, at any depth."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid="], check=True, capture_output=True, text=True
    ).stdout.split()
    parents = {int(a): int(b) for a, b in zip(listed[::2], listed[1::2])}
    found, new = set[int](), {pid}
    while new := {child for child, parent in parents.items() if parent in new} - found:
        found |= new
    return found


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_killed_owner_leaves_no_process(probe, method):
    program = [sys.executable, "-c", OWNER, method, probe(STUBBORN)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        assert owner.stdin
        assert owner.stdout
        zygote, *pids = map(int, owner.stdout.readline().split())
        if method == "spawn":  # each has begun what would outlive it
            until(lambda: len(descendants(zygote)) >= 2 * len(pids), "they started nothing")
        everybody = {zygote, *pids} | descendants(zygote)
        print(file=owner.stdin, flush=True)
        fork = int(owner.stdout.readline())
        owner.kill()
    wait_gone(*everybody)
    os.kill(fork, signal.SIGKILL)


def test_a_zygote_without_room_for_descriptors_says_so_and_goes_on():
    with running() as (host, (process,)):
        zygote = host._nursery._zygote.pid
        limits = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (3, limits[1]))
        with pytest.raises(Unavailable, match="descriptor"):
            host.start(starts(1))
        assert not process.ended.done()
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, limits)
        (another,) = host.start(starts(1))
        another.stop(PATIENCE)
        assert another.ended.result(0) == Cause(code=0)


def test_a_killed_zygote_takes_its_processes_along():
    host = LocalHost(spares=1)
    try:
        processes = host.start(starts(3))
        host._nursery._zygote.kill()
        for process in processes:
            assert "had started it" in str(process.ended.result(PATIENCE))
        wait_gone(*(process.pid for process in processes))
        with pytest.raises(Unavailable):
            host.start(starts(1))
        for process in processes:
            process.stop(0)
    finally:
        host.close()


def test_a_fork_of_the_owner_cannot_use_its_host():
    with running() as (host, _):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(InvalidUse):
                host.start(starts(1))
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
