"""The public surface: what can be imported from `transport`, lazily, and nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import transport


def typed_names(package):
    """Name -> module of the imports that type checkers see."""
    tree = ast.parse(Path(package.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    imports = [n for n in block.body if isinstance(n, ast.ImportFrom)]
    return {alias.asname: node.module for node in imports for alias in node.names}


def test_type_checkers_and_users_see_the_same_names():
    lazy = {name: f"transport.{home}" for name, home in transport._HOMES.items()}
    lazy |= dict.fromkeys(transport._MODULES, "transport")
    assert typed_names(transport) == lazy
    assert set(transport.__all__) == {"__version__", *lazy}


def test_so_they_do_of_sharded_tensors():
    sharding = transport.sharding
    assert typed_names(sharding) == {
        name: f"transport.sharding.{home}" for name, home in sharding._HOMES.items()
    }
    for name in sharding.__all__:
        assert getattr(sharding, name) is not None
    with pytest.raises(AttributeError):
        sharding.nothing


@pytest.mark.parametrize("name", transport.__all__)
def test_every_name_loads(name):
    assert getattr(transport, name) is not None
    assert name in dir(transport)


def test_other_names_do_not():
    with pytest.raises(AttributeError):
        transport.nothing


def test_import_is_light():
    code = "import sys, transport; print(*[m for m in {} if m in sys.modules])"
    heavy = ["torch", "numpy", "asyncio", "click", "transport.ffi._native", "msgspec"]
    done = subprocess.run(
        [sys.executable, "-c", code.format(heavy)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_using_an_engine_does_not_import_torch():
    code = "import sys, transport; transport.Engine().close(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
