"""The limits of this process on this machine: cores, threads, descriptors, processes, disk space.

A container's limits are included: a process that sees 64 cores may be limited to the time of two.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import shutil
from pathlib import Path

from reap.system.memory import CGROUP

SCHEDULED = Path("/proc/self/schedstat")
"""Of the main thread of this process."""


def usable_cores() -> int:
    """Number of cores on which this process may run; all cores if unknown."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_quota(cgroup: Path = CGROUP) -> float:
    """The container's CPU limit, in cores; infinite if there is none.

    Args:
        cgroup: the folder of its limits, of version 2 or 1.
    """
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = " ".join((cgroup / name).read_text() for name in names).split()
            quota, period = (float(word) for word in words)
        except (OSError, ValueError):  # no such file, or "max"
            continue
        return quota / period if quota > 0 else math.inf
    return math.inf


def waited_for_core(noted: Path = SCHEDULED) -> float:
    """Seconds for which the main thread of this process was ready to run but had to wait for a core; 0 if unknown.

    Args:
        noted: the file that holds it, after the time on a core; both in nanoseconds.
    """
    try:
        return float(noted.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def limit_of(name: str) -> float:
    """The soft limit of a resource; infinite if there is none, or if unknown.

    Args:
        name: a constant of the module `resource`, such as `"RLIMIT_NOFILE"`.
    """
    if importlib.util.find_spec("resource") is None:  # Windows
        return math.inf
    resource = importlib.import_module("resource")
    soft, _ = resource.getrlimit(getattr(resource, name))
    return math.inf if soft == resource.RLIM_INFINITY else float(soft)


def free_bytes(folder: str | Path) -> float:
    """Number of bytes that this user can write to the disk of a folder.

    Raises:
        OSError: the folder does not exist.
    """
    return float(shutil.disk_usage(folder).free)
