"""A Ray of this machine for the tests of a process, with what its processes need to import tests."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reap import optional
from tests.kept import is_kept, keep
from tests.workers.ray.pool import PooledCluster

CONFIG = {"address": "local", "num_cpus": 16, "include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
ROOT = str(Path(__file__).parents[3])

ONE_RAY = pytest.mark.xdist_group("ray")
"""All tests on Ray run in one process of xdist, one after the other: a Ray takes both cores to start."""


SLOW_STARTS = pytest.mark.filterwarnings("ignore:worker . has been in start for:RuntimeWarning")
"""On a busy machine Ray needs more than a minute to start an actor."""


def on_ray() -> list[pytest.MarkDecorator]:
    """The marks of a file of tests that use `local_ray`. Whichever is the first of them waits for Ray to start."""
    marks = [pytest.mark.distributed, pytest.mark.ray, ONE_RAY, SLOW_STARTS]
    return [*marks, pytest.mark.timeout(300), pytest.mark.usefixtures("local_ray")]


@pytest.fixture
def _nothing_left_running() -> None:
    """Not test by test: Ray's own threads and processes stay until its end. For files on Ray, in place of the other."""


@contextmanager
def running_ray() -> Generator[None]:
    """Ray runs, with more CPUs than there are: they are numbers."""
    stop = started_ray()
    yield
    stop()


def started_ray() -> Callable[[], None]:
    """Start Ray; the function that ends it."""
    ray = optional.load("ray")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # Ray's own, about what it will change
        patch.setenv("PYTHONPATH", os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_worker_niceness", "0")  # 15 otherwise: on a busy machine actors would take minutes to start
        ray.init(**CONFIG)

    def stop() -> None:
        PooledCluster.idle.clear()
        ray.shutdown()

    return stop


@pytest.fixture(scope="module")
def local_ray() -> None:
    """The Ray of this process, with actors that groups have given back: files share it until a test has no use for it."""
    pytest.importorskip("ray")
    if not is_kept("ray"):
        keep("ray", started_ray())
