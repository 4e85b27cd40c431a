"""How programs end that own a mesh, and what they are told that they did not ask for."""

from __future__ import annotations

import gc
import re
import signal
import subprocess
import sys
import time

import transport
from transport import InvalidUse
from transport.mesh.hosts.local import LocalHost

PROGRAM = """
import sys, threading, transport

class Talker(transport.Actor):
    @transport.endpoint
    def talk(self):
        print("one")
        print("two")

    @transport.endpoint
    def fail(self):
        raise KeyError("unheard")

    @transport.endpoint
    def hang(self):
        print("hanging")
        threading.Event().wait()

    def __cleanup__(self, error):
        print("tidy")

mesh = transport.local(2)
talkers = mesh.spawn("talker", Talker)
"""


def run(tmp_path, program):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + program)
    return subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False
    )


def test_without_with_all_output_arrives_and_actors_clean_up(tmp_path):
    done = run(tmp_path, "talkers.talk.call().get()")
    assert (done.returncode, done.stderr) == (0, "")
    lines = sorted(done.stdout.splitlines())
    assert lines == [f"local[{rank}] {word}" for rank in (0, 1) for word in ("one", "tidy", "two")]


def test_the_end_by_an_exception_stops_the_mesh_too(tmp_path):
    done = run(tmp_path, "talkers.talk.call().get(); sys.exit(3)")
    assert done.returncode == 3
    assert done.stdout.count("tidy") == 2


def test_a_failed_call_that_nobody_asks_for_is_logged_once(tmp_path):
    done = run(tmp_path, "talkers.fail.call(); talkers.talk.call().get()")
    assert done.stderr.count("nobody asked for its outcome") == 1
    assert "KeyError: 'unheard'" in done.stderr
    assert re.search(r'program\.py", line \d+, in fail', done.stderr)


def test_what_was_asked_for_or_ended_with_the_mesh_is_not_logged(tmp_path):
    hanging = "hanging = talkers.hang.call(); del hanging"
    done = run(tmp_path, f"call = talkers.fail.call(); call.exception(); del call; {hanging}")
    assert (done.returncode, done.stderr) == (0, "")


def test_interrupts_are_told_what_goes_on(tmp_path):
    """The second one ends actors that do not clean up."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + "with mesh:\n    talkers.hang.call().get()")
    with subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        lines = {program.stdout.readline() for _ in range(2)}
        assert lines == {"local[0] hanging\n", "local[1] hanging\n"}
        program.send_signal(signal.SIGINT)
        assert "interrupt again to kill them" in program.stderr.readline()
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=60)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert program.returncode == -signal.SIGINT


def test_a_mesh_that_is_dropped_is_a_warning_once_nobody_can_use_it(tmp_path):
    program = """
import warnings
warnings.simplefilter("always")
one = talkers.slice(rank=0)
del mesh, talkers
print("in use", file=sys.stderr)
del one
print("dropped", file=sys.stderr)
"""
    done = run(tmp_path, program)
    in_use, warned, dropped = (
        done.stderr.index(text)
        for text in ("in use", "ResourceWarning: the mesh local", "dropped\n")
    )
    assert in_use < warned < dropped
    assert done.stderr.count("the mesh local was dropped") == 1
    assert done.returncode == 0


def why_not(call, *args):
    """Keeps nothing of what is raised."""
    try:
        call(*args)
    except InvalidUse as error:
        return str(error)
    return ""


def test_a_replacement_that_a_stop_refuses_is_not_logged(caplog):
    class Stopping(LocalHost):
        """Its mesh is stopped when it has started a second time."""

        mesh = None

        def start(self, ranks):
            started = super().start(ranks)
            if self.mesh is not None:
                self.mesh.stop()
            return started

    host = Stopping()
    mesh = transport.ProcessMesh.start(host, {"rank": 1})
    host.mesh = mesh
    assert "stopped meanwhile" in why_not(mesh.replace, 0)
    for _ in range(10):
        gc.collect()
        time.sleep(0.1)  # what is logged is logged by a thread of its own
    assert "nobody asked" not in caplog.text
