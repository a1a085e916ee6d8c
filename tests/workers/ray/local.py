"""A Ray of this machine for the tests of a process, with what its processes need to import tests."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reap import optional
from tests.workers.ray.pool import PooledCluster

CONFIG = {"address": "local", "num_cpus": 16, "include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
ROOT = str(Path(__file__).parents[3])

ONE_RAY = pytest.mark.xdist_group("ray")
"""All tests on Ray run in one process of xdist, one after the other: a Ray takes both cores to start."""


def on_ray(seconds: int) -> list[pytest.MarkDecorator]:
    """The marks of a file of tests that use `local_ray`, each of which may take this long."""
    return [pytest.mark.distributed, ONE_RAY, pytest.mark.timeout(seconds), pytest.mark.usefixtures("local_ray")]


@contextmanager
def running_ray() -> Generator[None]:
    """Ray runs, with more CPUs than there are: they are numbers."""
    ray = optional.load("ray")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # Ray's own, about what it will change
        patch.setenv("PYTHONPATH", os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_worker_niceness", "0")  # 15 otherwise: on a busy machine actors would take minutes to start
        ray.init(**CONFIG)
        yield
        PooledCluster.idle.clear()
        ray.shutdown()


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """Every file has one of its own: another may need a cluster."""
    pytest.importorskip("ray")
    with running_ray():
        yield
