"""The checks of `reap doctor`: a finding for each thing that a collection depends on, with a remedy if there is a problem.

Each judgement is a function of values that were read; `findings` reads them, and calls all judgements.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch
from packaging.requirements import Requirement

from reap.collectors.multi import MultiSyncDataCollector
from reap.system.machine import core_quota, free_bytes, limit_of, usable_cores
from reap.system.memory import available_memory, readable

LEAST_MEMORY, LEAST_SPACE, LEAST_SHM = 1e9, 1e9, 1e9
LEAST_DESCRIPTORS, LEAST_PROCESSES = 1024, 512
SLOW_START = 30.0
"""Seconds until a worker's first batch; one to four are usual."""

UNSEEN = "not seen by the system"

NEIGHBOURS = (
    "gymnasium",
    "numpy",
    "tensordict",
    "torchrl",
    "ray",
    "submitit",
    "pettingzoo",
    "envpool",
    "matplotlib",
    "mujoco",
    "ale-py",
)
"""Packages whose versions matter, required or not, in the order of the report."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: the thing that was checked.
        found: its value.
        remedy: advice; empty if there is no problem.
    """

    name: str
    found: str
    remedy: str = ""

    @property
    def status(self) -> str:
        """`"ok"` or `"warning"`."""
        return "warning" if self.remedy else "ok"


def findings() -> Iterator[Finding]:
    """Check everything, the quick checks first."""
    yield Finding("reap", f"{version('reap')}, in {Path(__file__).parents[1]}")
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}")
    yield system(platform.system(), platform.platform(), hasattr(os, "memfd_create"))
    yield Finding("torch", f"{torch.__version__}, {'with' if torch.version.cuda else 'without'} CUDA")
    yield cuda(torch.version.cuda, [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())])
    cores, quota = usable_cores(), core_quota()
    yield processors(cores, quota)
    yield threads(torch.get_num_threads(), min(cores, quota))
    yield memory(*available_memory())
    yield shared_memory(_free(Path("/dev/shm")))
    yield descriptors(limit_of("RLIMIT_NOFILE"))
    yield processes(limit_of("RLIMIT_NPROC"))
    yield space(tempfile.gettempdir(), _free(Path(tempfile.gettempdir())))
    yield from neighbours()
    yield worker()


def system(name: str, words: str, has_memfd: bool) -> Finding:
    """Whether the system offers what worker processes need."""
    remedy = "" if name == "Linux" and has_memfd else "worker processes need Linux; use SyncDataCollector with SerialEnv here"
    return Finding("system", words, remedy)


def cuda(built_for: str | None, devices: list[str]) -> Finding:
    """The devices that torch finds.

    Args:
        built_for: torch's version of CUDA; None if it has none.
        devices: their names.
    """
    if built_for is None:
        return Finding("CUDA", "not in this build of torch")
    remedy = (
        ""
        if devices
        else "torch finds no device: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or install torch's build for CPUs"
    )
    return Finding("CUDA", f"{built_for}, {len(devices)} devices{': ' if devices else ''}{', '.join(devices)}", remedy)


def processors(cores: int, quota: float) -> Finding:
    """The visible cores, and the available time on them."""
    if quota >= cores:
        return Finding("cores", f"{cores}")
    few = max(1, math.floor(quota))
    return Finding(
        "cores", f"{cores}, limited by the container to the time of {quota:g}", f"plan for {few}: workers × threads ≤ {few}"
    )


def threads(torch_threads: int, cores: float) -> Finding:
    """Torch's threads in this process; workers use one each."""
    few = max(1, math.floor(cores))
    remedy = "" if torch_threads <= few else f"more threads than cores: torch.set_num_threads({few}), or OMP_NUM_THREADS={few}"
    return Finding(
        "threads", f"torch uses {torch_threads}; OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}", remedy
    )


def memory(available: float, bound: str) -> Finding:
    """Available memory; batches of workers are stored in it.

    Args:
        available: in bytes.
        bound: what sets the limit.
    """
    remedy = "" if available >= LEAST_MEMORY else f"little is left: end other programs, or give {bound} more"
    return Finding("memory", f"{_size(available)} left; the limit is set by {bound}", remedy)


def shared_memory(free: float | None) -> Finding:
    """`/dev/shm`, which reap does not use, but torch's DataLoader and Ray do."""
    if free is None:
        return Finding("/dev/shm", UNSEEN)
    small = "reap does not need it, but torch's DataLoader and Ray do: docker run --shm-size=8g, or mount a larger tmpfs there"
    return Finding("/dev/shm", f"{_size(free)} free", "" if free >= LEAST_SHM else small)


def descriptors(limit: float) -> Finding:
    """The limit on open files of a process; each worker takes a few of the trainer's."""
    remedy = "" if limit >= LEAST_DESCRIPTORS else "too few for many workers: ulimit -n 65536"
    return Finding("open files", _count(limit), remedy)


def processes(limit: float) -> Finding:
    """The user's limit on processes and threads."""
    remedy = "" if limit >= LEAST_PROCESSES else "too few for many workers: ulimit -u 4096"
    return Finding("processes", _count(limit), remedy)


def space(folder: str, free: float | None) -> Finding:
    """Disk space for scratch files.

    Args:
        folder: the folder for temporary files.
        free: bytes that can be written there; None if unknown.
    """
    if free is None:
        return Finding("temporary folder", f"{folder}: {UNSEEN}", "set TMPDIR to a folder that exists")
    remedy = (
        "" if free >= LEAST_SPACE else "little room: set TMPDIR to a folder on a larger disk; LazyMemmapStorage writes there"
    )
    return Finding("temporary folder", f"{folder}, {_size(free)} free", remedy)


def neighbours() -> Iterator[Finding]:
    """Versions of other packages, compared with reap's requirements."""
    required = {}
    for line in requires("reap") or ():
        requirement = Requirement(line)
        required.setdefault(requirement.name, requirement)
    for name in NEIGHBOURS:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        yield neighbour(name, found, required.get(name))


def neighbour(name: str, found: str, requirement: Requirement | None) -> Finding:
    """Whether reap works with a version."""
    if requirement is None or requirement.specifier.contains(found, prereleases=True):
        return Finding(name, found)
    return Finding(name, found, f'pip install "{name}{requirement.specifier}"')


def worker() -> Finding:
    """Whether a worker process starts, steps an env, and ends."""
    started = time.perf_counter()
    try:
        with MultiSyncDataCollector(["CartPole-v1"], None, frames_per_batch=10, total_frames=10) as collector:
            frames = collector.next().numel()
    except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
        return Finding(
            "a worker", f"{type(error).__name__}: {' '.join(str(error).split())}", "collect one batch by hand for the traceback"
        )
    return first_batch(frames, time.perf_counter() - started)


def first_batch(frames: int, seconds: float) -> Finding:
    """A worker's first batch, and the time it took, including the start."""
    remedy = (
        ""
        if seconds <= SLOW_START
        else "a slow start: other programs use the cores (see top), or Python's packages are on a slow disk; "
        "move the virtual environment to a local one"
    )
    return Finding("a worker", f"{frames} frames of CartPole-v1 in {seconds:.1f} s, including its start", remedy)


def _free(folder: Path) -> float | None:
    try:
        return free_bytes(folder)
    except OSError:
        return None


def _size(nbytes: float) -> str:
    return "unlimited" if math.isinf(nbytes) else readable(nbytes)


def _count(limit: float) -> str:
    return "unlimited" if math.isinf(limit) else f"{limit:,.0f}"
