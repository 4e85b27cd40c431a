"""The setting huge_pages: what it gives, and what it says where the machine has none."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from transport import Engine, InvalidUse, NativeError, Settings
from transport.cli import doctor_checks

WAIT = 60.0
HUGE = 2 << 20


def free_huge_pages():
    found = re.search(r"HugePages_Free:\s+(\d+)", Path("/proc/meminfo").read_text())
    return int(found[1]) if found else 0


def pages_of(address):
    """The VmFlags of the mapping that begins there."""
    flags = re.compile(rf"^{address:x}-.*?^VmFlags: ([^\n]*)", re.MULTILINE | re.DOTALL)
    found = flags.search(Path("/proc/self/smaps").read_text())
    assert found
    return found[1].split()


@pytest.mark.parametrize(("value", "advised"), [("transparent", True), ("none", False)])
def test_transparent_ones_are_asked_for(value, advised):
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no transparent huge pages")
    with Engine(settings=Settings.from_env(huge_pages=value)) as engine:
        array = engine.empty(1000, "uint8")
        array[:] = 1
        assert ("hg" in pages_of(engine._core.pool._segments[0].base)) is advised


def test_reserved_ones_or_an_error_that_says_so():
    settings = Settings.from_env(huge_pages="reserved")
    if free_huge_pages() < 8:
        with Engine(settings=settings) as engine, pytest.raises(NativeError, match="nr_hugepages"):
            engine.empty((free_huge_pages() + 1) * HUGE, "uint8")
        return
    with Engine(settings=settings) as owner, Engine() as guest:
        array = owner.empty(3_000_000, "uint8")
        array[:] = 5
        with owner.register(array) as region:
            into = np.empty(3_000_000, np.uint8)
            assert guest.read(region.remote(), into=into).wait(WAIT).path == "mapped"
            assert (into == 5).all()
            with guest.map(region.remote()[1000:]) as mapping:
                assert (mapping.numpy() == 5).all()
                mapping.torch().add_(1)
                assert (array == 5).all()


def test_other_values_are_refused():
    with pytest.raises(InvalidUse, match="TRANSPORT_HUGE_PAGES"):
        Settings.from_env(huge_pages="always")


@pytest.mark.parametrize(("chosen", "state"), [("never", "note"), ("advise", "ok")])
def test_the_doctor_tells(tmp_path, chosen, state):
    folder = tmp_path / "sys/kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    (folder / "enabled").write_text("[madvise]")
    words = ["always", "advise", "never"]
    text = " ".join(f"[{word}]" if word == chosen else word for word in words)
    (folder / "shmem_enabled").write_text(text)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("HugePages_Total:   10\nHugePages_Free:     7\n")
    found = {finding.name: finding for finding in doctor_checks.memory(tmp_path)}
    assert found["huge pages shmem_enabled"].state == state
    assert "7 free of 10" in found["huge pages reserved"].value
