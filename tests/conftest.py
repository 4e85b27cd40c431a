"""Shared by all layers: the TRANSPORT_REQUIRE rule, hypothesis profiles, where the doubles lie."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capabilities import RequirePlugin
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fakeverbs import Double

ROOT = Path(__file__).resolve().parent.parent

# Built by `make fakes`; the C test programs find their doubles through the same variable.
os.environ.setdefault("TN_FAKES", str(ROOT / "build" / "native" / "test" / "fakes"))

# Where the processes of this run find each other over the double of libibverbs.
if "FAKEVERBS_FABRIC" not in os.environ:
    os.environ["FAKEVERBS_FABRIC"] = tempfile.mkdtemp(prefix="fabric-")

    @atexit.register
    def _remove(folder: str = os.environ["FAKEVERBS_FABRIC"], owner: int = os.getpid()) -> None:
        if os.getpid() == owner:  # not a child that was forked
            shutil.rmtree(folder, ignore_errors=True)


# No deadline anywhere: a shared two-core machine makes any per-example limit a flaky test.
settings.register_profile("dev", deadline=None, max_examples=50)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=200,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RequirePlugin(), "transport-require")


@pytest.fixture(scope="session")
def fakes() -> Path:
    """The folder with the doubles of foreign libraries (`fakeverbs.so` and so on)."""
    return Path(os.environ["TN_FAKES"])


@pytest.fixture
def double() -> Iterator[Double]:
    """The double of libibverbs in this process, set back to its beginning round the test."""
    from fakeverbs import Double  # not before TN_FAKES is set

    handle = Double()
    handle.reset()
    yield handle
    handle.reset()
