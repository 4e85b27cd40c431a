from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from transport.cli import commands
from transport.errors import InvalidUse, NativeError

SHAPES = {
    "model.embed_tokens.weight": {"shape": [64, 16], "dtype": "bfloat16"},
    **{
        f"model.layers.{layer}.mlp.{name}_proj.weight": {"shape": shape, "dtype": "bfloat16"}
        for layer in range(2)
        for name, shape in (("up", [32, 16]), ("down", [16, 32]))
    },
}
NBYTES = 2 * (64 * 16 + 4 * 32 * 16)


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps(SHAPES))
    return file


def run(*words):
    return CliRunner().invoke(commands, ["plan", *map(str, words)])


def asked(model, source, target, *words):
    done = run("--model", model, "--from", source, "--to", target, "--json", "-", *words)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_json_has_the_promised_shape(model):
    found = asked(model, "fsdp=8", "tp=4,pp=2")
    assert {"schema", "rank_plan_s", "bytes", "lower_bound_bytes", "imbalance"} <= set(found)
    assert found["bytes"] == found["lower_bound_bytes"] == NBYTES
    assert found["from"] == {"parallelism": "fsdp=8", "ranks": 8}
    assert found["to"] == {"parallelism": "pp=2,tp=4", "ranks": 8}
    assert found["imbalance"] >= 1
    assert found["rank_plan_s"] > 0
    assert len(found["source_bytes"]) == len(found["target_bytes"]) == 8
    assert sum(found["source_bytes"]) == sum(found["target_bytes"]) == NBYTES
    assert found["bytes_by_place"] == {"process": 0, "host": 0, "rail": 0, "far": NBYTES}


def test_the_time_is_both_terms_of_the_slowest_link(model):
    time = asked(model, "dp=1", "dp=2", "--gb-per-s", "0.001", "--overhead-us", "50")["time"]
    assert time["busiest"] == {"side": "source", "rank": 0}
    assert time["transfers"] == 2 * len(SHAPES)
    assert time["bytes"] == 2 * NBYTES
    assert time["overhead_s"] == pytest.approx(2 * len(SHAPES) * 50e-6)
    assert time["bytes_s"] == pytest.approx(2 * NBYTES / 1e6, rel=1e-4)
    assert time["total_s"] == pytest.approx(time["overhead_s"] + time["bytes_s"], rel=1e-4)


def test_what_stays_in_a_process_or_a_host_takes_no_link(model):
    same = asked(model, "fsdp=4", "fsdp=4", "--together", "processes")
    assert same["bytes"] == same["lower_bound_bytes"] == 0
    assert same["bytes_by_place"]["process"] == NBYTES
    host = asked(model, "fsdp=4", "tp=4", "--together", "hosts", "--ranks-per-host", 4)
    assert host["bytes_by_place"] == {"process": 0, "host": NBYTES, "rail": 0, "far": 0}
    assert host["time"]["bytes"] == 0


def test_words_pictures_and_files(model, tmp_path):
    svg, png, file = tmp_path / "a.svg", tmp_path / "a.png", tmp_path / "a.json"
    words = ("--model", model, "--from", "fsdp=8", "--to", "tp=4,pp=2", "--json", file)
    done = run(*words, "--plot", svg)
    assert done.exit_code == 0
    for label in ("bytes", "lower bound", "sources send", "imbalance", "time", "planning"):
        assert any(line.startswith(label) for line in done.stdout.splitlines()), label
    assert "no byte more is sent" in done.stdout
    assert "planning target rank 0" in done.stderr
    assert "planning target rank" not in done.stdout
    assert json.loads(file.read_text())["bytes"] == NBYTES
    assert ET.fromstring(svg.read_text()).tag.endswith("svg")
    assert run(*words, "--plot", png).exit_code == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_layouts_are_drawn_of_what_weighs_most_or_of_a_tensor(model):
    drawn = run("--model", model, "--from", "fsdp=2", "--to", "tp=2").stdout
    assert "  model.embed_tokens.weight" in drawn
    name = "model.layers.1.mlp.down_proj.weight"
    one = run("--model", model, "--from", "fsdp=2", "--to", "tp=2", "--tensor", name).stdout
    assert one.count(f"  {name}: bfloat16[16, 32] on ") == 2
    assert "embed_tokens" not in one
    none = run("--model", model, "--from", "fsdp=2", "--to", "tp=2", "--tensor", "x")
    assert none.exit_code == 2
    assert "has no x" in none.output


def test_a_model_that_nobody_knows():
    done = run("--model", "nomodel", "--from", "fsdp=2", "--to", "tp=2")
    assert done.exit_code == 2
    assert "deepseek-v3" in done.output
    assert "llama-3-405b" in done.output


def test_another_type_for_all(model):
    assert asked(model, "fsdp=2", "tp=2", "--dtype", "float32")["bytes"] == 2 * NBYTES


def test_names_that_no_rule_is_for_are_told(tmp_path):
    file = tmp_path / "shapes.json"
    file.write_text('{"w": {"shape": [8, 8], "dtype": "int8"}}')
    done = run("--model", file, "--from", "fsdp=2", "--to", "tp=2")
    assert done.exit_code == 0
    assert "no rule says how tensor parallel ranks cut 1 tensors with 100%" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from", "fsdp", "--to", "tp=2"), "write it as in"),
        (("--from", "fsdp=0", "--to", "tp=2"), "with a size"),
        (("--from", "fsdp=2", "--to", "tp=2", "--rank", "2"), "target ranks 0 to 1"),
        (("--from", "fsdp=2", "--to", "tp=2", "--rank", "-1"), "target ranks 0 to 1"),
        (("--from", "fsdp=2", "--to", "tp=2", "--plot", "a.pdf"), "neither .svg nor .png"),
        (("--from", "fsdp=2", "--to", "tp=2", "--plot", "/nowhere/a.svg"), "no folder /nowhere"),
        (("--from", "fsdp=2", "--to", "tp=2", "--together", "hosts"), "--ranks-per-host"),
        (("--from", "fsdp=2", "--to", "tp=2", "--gb-per-s", "0"), "--gb-per-s"),
        (("--from", "fsdp=2", "--to", "tp=2", "--dtype", "float3"), "float3 is none of"),
        (("--from", "fsdp=2", "--to", "tp=2", "--gb-per-s", "nan"), "not a finite number"),
        (("--from", "fsdp=2", "--to", "tp=2", "--overhead-us", "inf"), "not a finite number"),
        (("--from", "fsdp=2", "--to", "tp=2", "--json", "/nowhere/a.json"), "no folder /nowhere"),
        (("--from", "fsdp=2", "--to", "tp=2", "--json", ""), "is a folder"),
        (("--from", "fsdp=2", "--to", "tp=2", "--tensor", "x"), "has no x"),
        (("--from", "fsdp=2"), "--to"),
    ],
)
def test_command_lines_that_make_no_sense(model, words, said):
    done = run("--model", model, *words)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize("model", ["nothing", "nothing.json", "/no/file", "/", ""])
def test_a_model_that_is_not_there(model):
    done = run("--model", model, "--from", "fsdp=2", "--to", "tp=2")
    assert done.exit_code == 2
    assert f"{model!r} is neither a file nor one of deepseek-v3" in done.output


def test_a_file_that_makes_no_sense_ends_with_one_typed_error(tmp_path):
    file = tmp_path / "shapes.json"
    file.write_text("[]")
    done = run("--model", file, "--from", "fsdp=2", "--to", "tp=2")
    assert type(done.exception) is InvalidUse


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_results_that_cannot_be_written_end_with_one_typed_error(model):
    words = ("--model", model, "--from", "fsdp=2", "--to", "tp=2")
    done = run(*words, "--json", "/dev/full")
    assert type(done.exception) is NativeError
    assert "writing /dev/full: No space left on device" in str(done.exception)
    assert "least possible" in done.stdout


@pytest.mark.slow
def test_a_thousand_ranks_of_a_published_model():
    found = asked("llama-3-405b", "fsdp=1024", "tp=8,dp=32")
    assert found["model"]["bytes"] == 2 * 405_853_388_800
    assert found["bytes"] == found["lower_bound_bytes"]
    assert found["imbalance"] <= 1.05
