"""What a test needs from the machine, and why a skip may be a failure.

Duty: skip loudly what cannot run here; fail instead when `TRANSPORT_REQUIRE=rdma,gpu` says that it
must. May import: pytest and the standard library. May not: the package under test.

    require("rdma")                       # skip unless this machine has an RDMA device
    require("torch", why_not)             # skip with your own reason; None or "": it is there
    pytest.importorskip("torch")          # counts as the capability "torch"
    pytest.skip("netns: needs root")      # the word before the colon is the capability
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAMED = re.compile(r"^(?:Skipped: )?([a-z][a-z0-9_-]*): ")
_IMPORT = re.compile(r"could not import '([^'.]+)")


def _rdma() -> str | None:
    devices = Path("/sys/class/infiniband")
    found = devices.is_dir() and any(devices.iterdir())
    return None if found else "no device in /sys/class/infiniband; `make test-rdma` brings one"


def _gpus() -> int:
    nvidia = [p for p in Path("/dev").glob("nvidia*") if p.name[6:].isdigit()]
    amd = list(Path("/dev/dri").glob("renderD*")) if Path("/dev/kfd").exists() else []
    return len(nvidia) + len(amd)


def _gpu() -> str | None:
    return None if _gpus() >= 1 else "no GPU device node in /dev"


def _multigpu() -> str | None:
    return None if _gpus() >= 2 else f"needs two GPUs, this machine has {_gpus()}"


# Each answers None when the capability is here, else the reason. Every name is also a marker.
DETECT: dict[str, Callable[[], str | None]] = {"rdma": _rdma, "gpu": _gpu, "multigpu": _multigpu}


def required() -> frozenset[str]:
    """The capabilities that TRANSPORT_REQUIRE names (comma-separated)."""
    names = os.environ.get("TRANSPORT_REQUIRE", "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def require(capability: str, reason: str | None = "?") -> None:
    """Skip the calling test (or module) unless the capability is here.

    `reason` tells why it is not, None or "" that it is; without one the machine is asked.
    """
    if reason == "?":
        reason = DETECT[capability]()
    if reason:
        pytest.skip(f"{capability}: {reason}", allow_module_level=True)


def capability_of(reason: str) -> str | None:
    """The capability whose absence a skip reason reports."""
    found = _NAMED.search(reason) or _IMPORT.search(reason)
    return found.group(1) if found else None


class RequirePlugin:
    """Turns skips into failures where the capability was promised, and sums the others up."""

    def __init__(self) -> None:
        self.absent: Counter[str] = Counter()

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for capability in DETECT:
            if item.get_closest_marker(capability):
                require(capability)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        return self._judge(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        report = yield
        return self._judge(report)

    def _judge(self, report):
        if report.outcome != "skipped" or hasattr(report, "wasxfail"):
            return report
        longrepr = report.longrepr
        reason = str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)
        capability = capability_of(reason)
        self.absent[capability or "other reasons"] += 1
        if capability in required():
            report.outcome = "failed"
            report.longrepr = f"TRANSPORT_REQUIRE promises {capability!r} here, yet: {reason}"
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.absent:
            listed = ", ".join(f"{name} {count}" for name, count in sorted(self.absent.items()))
            terminalreporter.write_line(f"not run here, by what was missing: {listed}")
