"""Which rank holds which part of a tensor, and the copies that turn one such layout into another.

Pure arithmetic in numpy: no torch and no I/O but the headers of files, and nothing but `execute`
touches an engine. May import memory.dtypes, types and errors. The public names are loaded when they
are first asked for, as in the package above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transport.sharding.importers.dtensor import layout_of as layout_of
    from transport.sharding.importers.dtensor import layouts_of as layouts_of
    from transport.sharding.importers.dtensor import mesh_of as mesh_of
    from transport.sharding.importers.fsdp1 import fsdp1_tensors as fsdp1_tensors
    from transport.sharding.importers.fsdp1 import (
        layouts_of_flat_parameter as layouts_of_flat_parameter,
    )
    from transport.sharding.importers.fsdp1 import layouts_of_fsdp1 as layouts_of_fsdp1
    from transport.sharding.importers.safetensors import TensorFiles as TensorFiles
    from transport.sharding.importers.safetensors import read_safetensors as read_safetensors
    from transport.sharding.importers.tables import layout_of_slices as layout_of_slices
    from transport.sharding.picture import picture_of as picture_of
    from transport.sharding.picture import picture_of_state as picture_of_state
    from transport.sharding.pieces import Pieces as Pieces
    from transport.sharding.state import Entry as Entry
    from transport.sharding.transform import join as join
    from transport.sharding.transform import merge as merge
    from transport.sharding.transform import permute as permute
    from transport.sharding.transform import rename as rename
    from transport.sharding.transform import split as split
    from transport.sharding.transform import unstack as unstack

_HOMES = {
    "Entry": "state",
    "Pieces": "pieces",
    "TensorFiles": "importers.safetensors",
    "fsdp1_tensors": "importers.fsdp1",
    "join": "transform",
    "layout_of": "importers.dtensor",
    "layout_of_slices": "importers.tables",
    "layouts_of": "importers.dtensor",
    "layouts_of_flat_parameter": "importers.fsdp1",
    "layouts_of_fsdp1": "importers.fsdp1",
    "merge": "transform",
    "mesh_of": "importers.dtensor",
    "permute": "transform",
    "picture_of": "picture",
    "picture_of_state": "picture",
    "read_safetensors": "importers.safetensors",
    "rename": "transform",
    "split": "transform",
    "unstack": "transform",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Loads a public name on first use; afterwards it is an ordinary attribute."""
    if name not in _HOMES:
        raise AttributeError(f"module 'transport.sharding' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"transport.sharding.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
