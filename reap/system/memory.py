"""Shared memory, and the amount of available memory.

    shared_memory(nbytes)         a new memfd, mapped and touched; a size that is not available is refused beforehand
    shared_memory(nbytes, fd)     the same memory in another process, by its descriptor

The limit is the smaller of the memory that the machine has left and the memory that the container (cgroup) may still take:
beyond the latter the kernel kills a process without a message.
"""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

UNITS = ("kB", "MB", "GB", "TB", "PB", "EB", "ZB")
CGROUP = Path("/sys/fs/cgroup")
LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
"""Limit and use of a container's memory, and the parts of the use: cgroup version 2, version 1."""

NO_LIMIT = 1 << 60
"""Version 1 writes a number near 2**63 if there is no limit."""


def readable(nbytes: float) -> str:
    """A number of bytes in readable form.

    Example:
        >>> readable(512), readable(2_500_000), readable(10 * 10**12)
        ('512 B', '2.5 MB', '10.0 TB')
    """
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    power = min(len(UNITS), int(math.log10(nbytes)) // 3)
    return f"{nbytes / 1000**power:.1f} {UNITS[power - 1]}"


def physical_memory() -> float:
    """Bytes of memory of this machine; infinite if unknown."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def available_memory() -> tuple[float, str]:
    """Bytes still available, and a text for the source of that limit; infinite if there is none."""
    bounds = [(_available_on_machine(), "the machine")]
    for limit, used, parts in LIMITS:
        taken = _number(CGROUP / used, 0.0) - _cached(CGROUP / parts)
        bounds.append((_number(CGROUP / limit) - taken, "the container (cgroup)"))
    return min(bounds)


def _cached(path: Path) -> float:
    """Bytes that count as used but are released on demand: cached files that were not used lately."""
    try:
        words = path.read_text().split()
    except OSError:
        return 0.0
    found = dict(zip(words[::2], words[1::2], strict=False))
    return float(found.get("total_inactive_file", found.get("inactive_file", 0)))


def _available_on_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return physical_memory()
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return float(found[0]) * 1024 if found else physical_memory()


def _number(path: Path, missing: float = math.inf) -> float:
    """The number in a file; `missing` if there is none ("max" means none too)."""
    try:
        number = float(path.read_text())
    except (OSError, ValueError):
        return missing
    return number if number < NO_LIMIT else missing


def shared_memory(nbytes: int, fd: int | None = None) -> tuple[Bytes, int]:
    """Memory that can be mapped by several processes, and its descriptor, which the caller closes.

    Args:
        nbytes: its size.
        fd: the descriptor of existing memory; None makes new, zeroed memory, whose pages are taken at once.

    Raises:
        MemoryError: more than is available.
        NotImplementedError: this system has no memfd.
    """
    if fd is not None:
        return _mapped(fd, nbytes), fd
    fd = empty_memory()
    try:
        take_pages(fd, nbytes)
        return _mapped(fd, nbytes), fd
    except BaseException:
        os.close(fd)
        raise


def empty_memory() -> int:
    """The descriptor of shareable memory, which has no size yet; the caller closes it.

    Raises:
        NotImplementedError: this system has no memfd.
    """
    if not hasattr(os, "memfd_create"):
        raise NotImplementedError("shared memory needs memfd_create, which Linux has; use SyncDataCollector and SerialEnv here")
    return os.memfd_create("reap", os.MFD_CLOEXEC)


def require_memory(nbytes: int) -> None:
    """Raise MemoryError if this number of bytes of shared memory is more than is available."""
    available, bound = available_memory()
    if nbytes > available:
        raise MemoryError(f"{readable(nbytes)} of shared memory are needed, and {bound} has {readable(available)} left")


def take_pages(fd: int, nbytes: int) -> None:
    """Give shared memory its size, and take all of its pages.

    Raises:
        MemoryError: more than is available.
    """
    require_memory(nbytes)
    try:
        os.posix_fallocate(fd, 0, max(nbytes, 1))
    except OSError as error:
        raise MemoryError(f"{readable(nbytes)} of shared memory were refused by the system: {error}") from error


def _mapped(fd: int, nbytes: int) -> Bytes:
    mapping: Any = mmap.mmap(fd, max(nbytes, 1))
    return np.frombuffer(mapping, np.uint8)[:nbytes]
