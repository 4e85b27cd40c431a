"""One small cluster for all of these tests: its workers are what costs time."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = [str(ROOT / "tests" / "support"), str(ROOT / "examples")]  # of modules with actors

sys.path.append(FOLDERS[1])

pytest.importorskip("ray")
pytest.importorskip("torch")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ["RAY_STACKS"] = str(tmp_path_factory.mktemp("stacks"))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray's own is 15: beside a busy neighbour a worker gets a thirtieth of a core, and imports
    # torch for minutes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    import transport.adapters.ray as adapter

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            num_cpus=2,
            object_store_memory=256 << 20,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={
                "worker_process_setup_hook": adapter.register,
                "env_vars": {
                    "PYTHONPATH": os.pathsep.join(FOLDERS),
                    "RAY_STACKS": os.environ["RAY_STACKS"],
                },
            },
        )
        yield
        engine = adapter.engine()
        ray.shutdown()
        engine.close()


@pytest.fixture(scope="session")
def members(cluster: None) -> list:
    """Three actors that live through all tests; those who kill make their own."""
    import ray
    from ray_actors import Member

    made = [Member.remote() for _ in range(3)]
    ray.get([member.ready.remote() for member in made])
    return made
