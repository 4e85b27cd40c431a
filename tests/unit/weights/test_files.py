"""Files: written by save, read by fetch and by the safetensors package; broken ones are refused."""

from __future__ import annotations

import json
import struct

import pytest
import safetensors.torch
import torch
from states import FULL, blank, filled, grid, local, same

from transport import Engine, InvalidUse, LayoutError, TransportError, VersionGone, weights
from transport.sharding.layout import Layout
from transport.sharding.state import StateLayout
from transport.weights.save import _shared_out


@pytest.fixture
def engine():
    with Engine(name="trainer") as engine:
        yield engine


@pytest.fixture
def published(engine):
    """Two ranks of one engine, with versions 1 (FULL) and 2."""
    layout = grid("dp=1,tp=2")
    states = [local(layout, rank) for rank in range(2)]
    publications = [
        weights.publish(engine, "policy", state, 1, layout=layout, rank=rank, keep=2)
        for rank, state in enumerate(states)
    ]
    for state, publication in zip(states, publications):
        with publication.writing(2):
            for tensor in state.values():
                tensor.fill_(2)
    yield engine.addresses[0]
    for publication in publications:
        publication.close()


@pytest.fixture
def reader():
    with Engine(name="reader") as engine:
        yield engine


# ----------------------------------------------------------------------------------------- saving
def test_one_file_as_others_read_it(published, reader, tmp_path):
    file = tmp_path / "policy.safetensors"
    done = weights.save(reader, "policy", file, published, version=1)
    assert (done.version, done.nbytes) == (1, sum(t.nbytes for t in FULL.values()))
    assert same(safetensors.torch.load_file(file), FULL)
    with safetensors.safe_open(file, "pt") as opened:
        assert opened.metadata() == {"version": "1", "format": "pt"}
    weights.save(reader, "policy", file, published)
    assert same(safetensors.torch.load_file(file), filled(2))
    assert [path.name for path in tmp_path.iterdir()] == ["policy.safetensors"]


@pytest.mark.parametrize("apart", [False, True])
def test_several_files_and_their_index(published, reader, tmp_path, apart):
    folder = tmp_path / "step" / "1"
    for part in range(3) if apart else [None]:
        assert not (folder / "model.safetensors.index.json").exists()
        weights.save(reader, "policy", folder, published, version=1, files=3, part=part)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in FULL.values())
    found = {}
    for number in range(1, 4):
        name = f"model-{number:05}-of-00003.safetensors"
        held = safetensors.torch.load_file(folder / name)
        assert all(index["weight_map"][tensor] == name for tensor in held)
        found |= held
    assert same(found, FULL)
    assert set(index["weight_map"]) == set(FULL)
    into = blank()
    for path in (folder, folder / "model.safetensors.index.json"):
        assert weights.fetch(reader, "policy", into, path, version=1).version == 1
        assert same(into, FULL)


@pytest.mark.parametrize(
    ("sizes", "files", "most"),
    [
        ([47, *[1] * 44], 3, 47),  # the rest in halves
        ([*[1] * 44, 47], 3, 47),
        ([1] * 90, 3, 30),
        ([5, 5, 5], 3, 5),
        ([30, 1, 1, 30, 1, 1, 30], 3, 32),
        ([1, 1], 3, 1),
        ([10, 10, 10, 10], 2, 20),
    ],
)
def test_files_are_about_of_one_size(sizes, files, most):
    layouts = {f"t{i}": Layout.whole((size,), "int8") for i, size in enumerate(sizes)}
    places = _shared_out(StateLayout(layouts), files)
    filled = [sum(s for s, at in zip(sizes, places.values()) if at == n) for n in range(files)]
    assert max(filled) <= most
    assert list(places.values()) == sorted(places.values())
    if len(sizes) >= files:
        assert min(filled) >= (sum(sizes) - max(filled)) // (files - 1) // 2


def test_a_save_that_fails_leaves_what_was_there(published, reader, tmp_path):
    file = tmp_path / "policy.safetensors"
    weights.save(reader, "policy", file, published, version=1)
    before = file.read_bytes()
    for wrong in ({"version": 9, "deadline": 0.05}, {"version": 0}):
        with pytest.raises(TransportError):
            weights.save(reader, "policy", file, published, **wrong)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["policy.safetensors"]


def test_what_cannot_be_saved(published, reader, tmp_path):
    for wrong in ({"files": 0}, {"files": True}, {"files": 2, "part": 2}, {"part": -1}):
        with pytest.raises(InvalidUse, match="between"):
            weights.save(reader, "policy", tmp_path, published, **{"version": 1, **wrong})
    with pytest.raises(InvalidUse, match="need a folder"):
        weights.save(reader, "policy", tmp_path / "a.safetensors", published, files=2)
    with pytest.raises(InvalidUse, match="give its number"):
        weights.save(reader, "policy", tmp_path, published, files=2, part=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(TransportError, match="mkdir"):
        weights.save(reader, "policy", tmp_path / "file" / "x", published)
    strange = {"c": torch.zeros(2, dtype=torch.complex128)}
    with (
        weights.publish(reader, "strange", strange, 1),
        pytest.raises(InvalidUse, match=r"c: safetensors files have no dtype complex128"),
    ):
        weights.save(reader, "strange", tmp_path / "c.safetensors", reader.addresses[0])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ---------------------------------------------------------------------------------------- loading
@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({name: t.contiguous() for name, t in FULL.items()}, path)
    return path


def test_a_cold_start(file, reader):
    into = blank()
    done = weights.fetch(reader, "policy", into, file)
    assert (done.version, done.nbytes) == (-1, sum(t.nbytes for t in FULL.values()))
    assert same(into, FULL)
    for rank in range(3):
        layout = grid("dp=1,tp=3")
        into = local(layout, rank, blank())
        weights.fetch(reader, "policy", into, file, layout=layout, rank=rank)
        assert same(into, local(layout, rank))
    wide = {"norm": torch.zeros(8, 4, 2)}
    weights.fetch(reader, "policy", wide, file)
    assert torch.equal(wide["norm"], FULL["norm"].float())
    assert not reader._core.regions._live


def test_the_version_of_a_file(published, file, reader, tmp_path):
    saved = tmp_path / "saved.safetensors"
    weights.save(reader, "policy", saved, published, version=1)
    assert weights.fetch(reader, "policy", blank(), saved).version == 1
    for path, words in ((saved, "has version 1, not 2"), (file, "has version -1")):
        with pytest.raises(VersionGone, match=words):
            weights.fetch(reader, "policy", blank(), path, version=2)


def test_files_of_several_versions(published, reader, tmp_path):
    for version in (1, 2):
        part = version - 1
        weights.save(reader, "policy", tmp_path, published, version=version, files=2, part=part)
    assert not (tmp_path / "model.safetensors.index.json").exists()
    with pytest.raises(InvalidUse, match="files of versions"):
        weights.fetch(reader, "policy", blank(), tmp_path)


def spoilt(data: bytes, **changes) -> bytes:
    """The file with another header."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header["embed"].update(changes)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[:100],
        lambda data: data[:-1],
        lambda data: struct.pack("<Q", 1 << 62) + data[8:],
        lambda data: struct.pack("<Q", 99_000_000) + data[8:],
        lambda data: struct.pack("<Q", 4) + b"[[[[" + data[8:],
        lambda data: struct.pack("<Q", 90_000) + b"[" * 90_000,
        lambda data: struct.pack("<Q", 14) + b'{"embed": null}',
        lambda data: spoilt(data, data_offsets=[0, 1 << 60]),
        lambda data: spoilt(data, data_offsets=[-8, 8]),
        lambda data: spoilt(data, data_offsets=[8, 0]),
        lambda data: spoilt(data, data_offsets=["0", "8"]),
        lambda data: spoilt(data, shape=[1 << 40, 1 << 40]),
        lambda data: spoilt(data, shape=[-64, -48]),
        lambda data: spoilt(data, shape="64"),
        lambda data: spoilt(data, dtype="F99"),
        lambda data: spoilt(data, dtype=["F32"]),
    ],
)
def test_a_broken_file_touches_nothing(file, reader, spoil):
    file.write_bytes(spoil(file.read_bytes()))
    into = blank()
    with pytest.raises((InvalidUse, LayoutError)):
        weights.fetch(reader, "policy", into, file)
    assert same(into, blank())
    assert not reader._core.regions._live


def test_no_such_file_and_tensor(file, reader, tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path / "none.index.json"):
        with pytest.raises(InvalidUse, match="no file"):
            weights.fetch(reader, "policy", blank(), path)
    with pytest.raises(LayoutError, match="more"):
        weights.fetch(reader, "policy", {"more": torch.zeros(1)}, file)
    with pytest.raises(InvalidUse, match=r"give the path: Path\('a.safetensors'\)"):
        weights.fetch(reader, "policy", blank(), "a.safetensors")


def test_a_file_that_is_truncated_while_it_is_read(reader, tmp_path):
    """The kernel copies, so that this is an error and no SIGBUS."""
    path = tmp_path / "big.safetensors"
    safetensors.torch.save_file({"big": torch.ones(1 << 20)}, path)
    into = {"big": torch.zeros(1 << 20)}
    from transport.weights import files

    with files.Files(reader, path) as source:
        handles = source[0]
        with path.open("r+b") as opened:
            opened.truncate(4096)
        with pytest.raises(TransportError):
            reader.read(handles["big"], into["big"]).wait(10)
