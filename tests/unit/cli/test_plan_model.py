from __future__ import annotations

import json
import math

import pytest

from transport.cli.plan_model import load_model
from transport.errors import InvalidUse, LayoutError, Unavailable
from transport.sharding.models import TensorShape

SIZES = {"BF16": 2, "F8_E4M3": 1, "F32": 4}


def header(tensors):
    """A safetensors file of zeros, written by hand: the format, not a library."""
    text, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, *shape) in tensors.items():
        begin, data = len(data), data + bytes(math.prod(shape) * SIZES[dtype])
        text[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(data)]}
    encoded = json.dumps(text).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


@pytest.fixture
def checkpoint(tmp_path):
    places = {"b": "model-2.safetensors", "a": "model-1.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (tmp_path / "model-1.safetensors").write_bytes(header({"a": ("BF16", 4, 2)}))
    (tmp_path / "model-2.safetensors").write_bytes(header({"b": ("F8_E4M3", 3)}))
    return tmp_path / "model.safetensors.index.json"


def test_an_index_and_the_headers_beside_it(checkpoint):
    model = load_model(str(checkpoint))
    assert model.table == {"b": TensorShape((3,), "float8_e4m3fn"), "a": ((4, 2), "bfloat16")}
    assert model.name == "model.safetensors.index.json"


def test_one_file(checkpoint):
    one = load_model(str(checkpoint.with_name("model-1.safetensors")))
    assert one.table == {"a": TensorShape((4, 2), "bfloat16")}


def test_grouped_keys_are_known_from_the_config(checkpoint):
    checkpoint.with_name("config.json").write_text('{"num_key_value_heads": 2}')
    heads = [rule.heads for rule in load_model(str(checkpoint)).rules if "k_proj" in rule.match]
    assert heads == [2]


def test_an_index_alone_says_what_is_missing(checkpoint):
    checkpoint.with_name("model-2.safetensors").unlink()
    with pytest.raises(InvalidUse, match=r"no file .*model-2.*tells no shapes.*put them beside it"):
        load_model(str(checkpoint))


def test_a_tensor_that_its_file_does_not_have(checkpoint):
    checkpoint.with_name("model-2.safetensors").write_bytes(header({"c": ("F32", 1)}))
    with pytest.raises(LayoutError, match=r"not in its files: \['b'\]"):
        load_model(str(checkpoint))


def test_a_table_of_shapes(tmp_path):
    file = tmp_path / "shapes.json"
    x, y = {"shape": [8, 4], "dtype": "torch.bfloat16"}, {"shape": [], "dtype": "float32"}
    file.write_text(json.dumps({"x": x, "y": y}))
    assert load_model(str(file)).table == {"x": ((8, 4), "bfloat16"), "y": ((), "float32")}


def test_a_table_with_rules(tmp_path):
    file = tmp_path / "shapes.json"
    table = {"x": {"shape": [8], "dtype": "int8"}, "rules": [{"match": "^x$", "tp": 0}]}
    file.write_text(json.dumps(table))
    (rule,) = load_model(str(file)).rules
    assert (rule.match, rule.tp, rule.heads) == ("^x$", 0, None)


def test_built_in_and_as_another_type():
    model = load_model("deepseek-v3", "bfloat16")
    assert model.table["model.layers.0.mlp.up_proj.weight"] == ((18432, 7168), "bfloat16")
    assert "model.layers.0.mlp.up_proj.weight_scale_inv" not in model.table


def test_neither_a_name_nor_a_file():
    with pytest.raises(Unavailable, match=r"neither a file nor one of deepseek-v3.*shapes\.json"):
        load_model("gpt-5")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("s.json", b"{", "is not JSON"),
        ("s.json", b"\xff\xfe", "is not JSON"),
        ("s.json", b"[" * 100_000, "is not JSON"),
        ("s.json", b"[]", "not a JSON object"),
        ("s.json", b"{}", "lists no tensors"),
        ("s.json", b'{"x": 1}', "tensor 'x'"),
        ("s.json", b'{"x": {"shape": [2], "dtype": "F3"}}', "there is no F3"),
        ("s.json", b'{"x": {"shape": [-2], "dtype": "float32"}}', r"\(-2,\) is no shape"),
        ("s.json", b'{"x": {"shape": [0], "dtype": "float32"}}', "no tensors that have bytes"),
        ("s.json", b'{"x": {"shape": [1.5], "dtype": "float32"}}', "tensor 'x'"),
        ("s.json", b'{"x": {"shape": [true], "dtype": "float32"}}', "tensor 'x'"),
        ("s.json", b'{"x": {"shape": [1e999], "dtype": "float32"}}', "tensor 'x'"),
        ("s.json", b'{"x": {"shape": [4611686018427387904], "dtype": "int8"}}', "over the limit"),
        ("s.json", b'{"x": {"shape": [2], "dtype": null}}', "there is no None"),
        ("s.json", b'{"\\ud800": {"shape": [2], "dtype": "int8"}}', "a name is printable"),
        ("s.json", b'{"\\u001b[2J": {"shape": [2], "dtype": "int8"}}', "a name is printable"),
        ("s.json", b'{"x": {"shape": [2], "dtype": "int8"}, "x": {}}', "'x' stands twice"),
        ("s.json", b'{"x": {"shape": "ab", "dtype": "float32"}}', "tensor 'x'"),
        ("s.json", b'{"x": {"shape": [1], "dtype": "float32"}, "rules": [{"tp": 1}]}', "a rule is"),
        ("s.json", b'{"x": {"shape": [1], "dtype": "float32"}, "rules": [3]}', "a rule is"),
        (
            "s.json",
            b'{"x": {"shape": [1], "dtype": "float32"}, "rules": [{"match": "x", "TP": 1}]}',
            "no 'TP'",
        ),
        ("m.index.json", b'{"weight_map": [1]}', "no weight_map"),
        ("m.index.json", b"{}", "no weight_map"),
        ("m.safetensors", b"", "is no safetensors file"),
        ("m.safetensors", b"\xff" * 8, "is no safetensors file"),
        ("m.safetensors", header({}), "lists no tensors"),
    ],
)
def test_files_that_make_no_sense(tmp_path, name, text, words):
    file = tmp_path / name
    file.write_bytes(text)
    with pytest.raises(InvalidUse, match=words):
        load_model(str(file))
