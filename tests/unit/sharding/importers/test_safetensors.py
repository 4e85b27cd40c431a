"""Layouts from safetensors files: what the format's own package writes, and what it would not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from transport.errors import InvalidUse, LayoutError
from transport.sharding.importers.safetensors import read_safetensors


def _write(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def _entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_files_of_an_index(tmp_path):
    """Each file is a rank that has its tensors whole, where the spans say."""
    package = pytest.importorskip("safetensors.numpy")
    tensors = {
        "one": {
            "a": np.arange(6, dtype=np.float32).reshape(2, 3),
            "b": np.arange(4, dtype=np.int8),
        },
        "two": {"c": np.arange(8, dtype=np.float16)},
    }
    for name, state in tensors.items():
        package.save_file(state, tmp_path / f"{name}.safetensors", {"format": "np"})
    weights = {t: f"{name}.safetensors" for name, state in tensors.items() for t in state}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    for path in (index, tmp_path):
        files = read_safetensors(path)
        assert [p.name for p in files.paths] == ["one.safetensors", "two.safetensors"]
        assert set(files.layouts) == {"a", "b", "c"}
        for number, state in enumerate(tensors.values()):
            data = files.paths[number].read_bytes()
            for name, array in state.items():
                layout, span = files.layouts[name].layout, files.spans[name]
                assert (layout.shape, layout.dtype) == (array.shape, array.dtype.name)
                assert layout.ranks.tolist() == [number] == [span.file]
                assert data[span.offset : span.offset + span.nbytes] == array.tobytes()


def test_half_bytes_are_counted_as_torch_does(tmp_path):
    header = {"w": _entry([3, 8], 0, 12, "F4"), "s": _entry([3], 12, 15, "F8_E8M0")}
    files = read_safetensors(_write(tmp_path / "x.safetensors", header, bytes(15)))
    assert files.layouts["w"].layout.shape == (3, 4)
    assert files.layouts["s"].layout.dtype == "float8_e8m0fnu"


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (b"", InvalidUse),
        (b"[1]", InvalidUse),
        (b"{no json", InvalidUse),
        ({"w": _entry([2], 0, 16)}, LayoutError),  # ends after the file
        ({"w": _entry([2], 0, 4)}, LayoutError),  # shape and length differ
        ({"w": _entry([-2], 0, 8)}, LayoutError),
        ({"w": _entry([2], 8, 0)}, LayoutError),
        ({"w": _entry([2], 0, 8, "F6_E2M3")}, LayoutError),
        ({"w": {"dtype": "F32"}}, LayoutError),
        ({"w": None}, LayoutError),
        ({"w": _entry([2], 0.0, 8.0)}, LayoutError),
        ({"w": _entry([2], False, 8)}, LayoutError),
        ({"\ud800": _entry([2], 0, 8)}, LayoutError),  # half a character
        ({"w": _entry([1], 0, 4), "v": _entry([2], 0, 8)}, LayoutError),  # bytes in common
        ({"w": _entry([1], 2, 6), "v": _entry([1], 0, 4)}, LayoutError),
        (b'{"w": 1, "w": 2}', LayoutError),
    ],
)
def test_headers_that_lie_are_refused(tmp_path, header, error):
    with pytest.raises(error, match=r"x\.safetensors"):
        read_safetensors(_write(tmp_path / "x.safetensors", header, bytes(8)))


def test_a_shape_without_end_is_not_multiplied_out(tmp_path):
    shape = [10**1000] * 300  # and there may be a hundred thousand
    path = _write(tmp_path / "x.safetensors", {"w": _entry(shape, 0, 8)}, bytes(8))
    with pytest.raises(LayoutError, match="no shape"):
        read_safetensors(path)


def test_a_header_of_gigabytes_is_not_read(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    with pytest.raises(InvalidUse, match="header would be"):
        read_safetensors(path)


def test_an_index_that_is_wrong(tmp_path):
    _write(tmp_path / "a.safetensors", {"w": _entry([2], 0, 8)}, bytes(8))
    index = tmp_path / "model.safetensors.index.json"
    for weights, error, words in (
        ({"w": "a.safetensors", "v": "a.safetensors"}, LayoutError, "v"),
        ({"w": "../a.safetensors"}, InvalidUse, "outside"),
        ("w", InvalidUse, "weight_map"),
        ({"w": "b.safetensors"}, InvalidUse, "b.safetensors"),
    ):
        index.write_text(json.dumps({"weight_map": weights}))
        with pytest.raises(error, match=words):
            read_safetensors(index)
    with pytest.raises(InvalidUse, match="no file"):
        read_safetensors(tmp_path / "nothing")
