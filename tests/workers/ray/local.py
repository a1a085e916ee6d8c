"""A Ray of this machine for the tests of a process, with what its processes need to import tests."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

CONFIG = {"address": "local", "num_cpus": 16, "include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
ROOT = str(Path(__file__).parents[3])


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """Ray runs, with more CPUs than there are: they are numbers."""
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # Ray's own, about what it will change
        patch.setenv("PYTHONPATH", os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))
        ray.init(**CONFIG)
        yield
        ray.shutdown()
