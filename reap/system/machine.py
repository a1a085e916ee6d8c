"""What this process may take of the machine: cores, threads, descriptors, processes, space.

A container's limits count: a process that sees 64 cores may have the time of two.
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
    """Cores that this process may run on; all where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_quota(cgroup: Path = CGROUP) -> float:
    """Cores' time that the container gives; infinite if it sets no limit.

    Args:
        cgroup: where its limits are found, of version 2 or 1.
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
    """Seconds that the main thread of this process was ready to run while other threads had the cores; 0 where nothing tells.

    Args:
        noted: the file in which the system notes it, after the seconds on a core; both in nanoseconds.
    """
    try:
        return float(noted.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def limit_of(name: str) -> float:
    """The soft limit of a resource; infinite if there is none, or none that the system tells.

    Args:
        name: of a constant of the module `resource`: `"RLIMIT_NOFILE"`.
    """
    if importlib.util.find_spec("resource") is None:  # Windows
        return math.inf
    resource = importlib.import_module("resource")
    soft, _ = resource.getrlimit(getattr(resource, name))
    return math.inf if soft == resource.RLIM_INFINITY else float(soft)


def free_bytes(folder: str | Path) -> float:
    """Bytes that this user can write on the disk of a folder.

    Raises:
        OSError: the folder is not there.
    """
    return float(shutil.disk_usage(folder).free)
