"""A module that was built from another C interface than the tree holds is refused at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import transport
from transport.ffi import interface, lib
from transport.testing.processes import run_program

PACKAGE = Path(transport.__file__).parent
ROOT = Path(__file__).parents[3]


@pytest.fixture
def tree(tmp_path):
    """A source tree as it is now, with the package of this one."""
    (tmp_path / "transport").symlink_to(PACKAGE)
    for part in ("bindings", "native/include"):
        shutil.copytree(ROOT / part, tmp_path / part)
    return tmp_path


def test_the_module_has_the_number_of_its_tree(tree):
    assert lib.TN_INTERFACE == interface.number(ROOT) == interface.number(tree)
    interface.check(lib.TN_INTERFACE, tree)


@pytest.mark.parametrize("file", ["bindings/engine.cdef.h", "native/include/transport_native.h"])
def test_each_side_of_the_interface_counts(tree, file):
    with (tree / file).open("a") as text:
        text.write("int tn_new_thing(void);\n")
    with pytest.raises(ImportError, match="make setup"):
        interface.check(lib.TN_INTERFACE, tree)


def test_a_module_without_a_number_is_an_old_one(tree):
    with pytest.raises(ImportError, match="make setup"):
        interface.check(None, tree)


def test_an_installed_package_has_no_tree(tree):
    (tree / "native/include/transport_native.h").unlink()
    assert interface.number(tree) is None
    interface.check(lib.TN_INTERFACE, tree)


def test_importing_says_so_in_one_line(tree):
    program = "import sys; sys.path.insert(0, sys.argv[1]); import transport.ffi"
    assert run_program(program, str(tree))[0] == 0
    (tree / "bindings/base.cdef.h").write_text("")
    code, _, said = run_program(program, str(tree))
    assert code == 1
    assert "make setup" in said.splitlines()[-1]
