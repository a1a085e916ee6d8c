"""Linux's system calls, as far as this system has them; features that need missing ones raise errors from here.

macOS has forks and POSIX files, but no memory files, event descriptors or process descriptors, so worker processes are not
supported. Windows also lacks forks, file locks and polling of descriptors.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any


def _c_library() -> Any:
    with suppress(OSError, TypeError):
        return ctypes.CDLL(None, use_errno=True)
    return None


def _module(name: str) -> Any:
    with suppress(ImportError):
        return import_module(name)
    return None


libc: Any = _c_library()
"""The C library; None on Windows."""

fcntl: Any = _module("fcntl")
"""The module, None on Windows."""

at_fork: Callable[..., None] = getattr(os, "register_at_fork", lambda **_functions: None)
"""Like `os.register_at_fork`: `before=`, `after_in_parent=`, `after_in_child=`; does nothing on systems without fork."""

OF_WORKERS = "memfd_create", "eventfd", "pidfd_open"
"""Calls that worker processes need."""


_CONSTANTS = ("LOCK_EX", "LOCK_NB", "LOCK_SH", "F_OFD_SETLK", "F_WRLCK", "F_UNLCK", "F_SETPIPE_SZ")
LOCK_EX, LOCK_NB, LOCK_SH, F_OFD_SETLK, F_WRLCK, F_UNLCK, F_SETPIPE_SZ = (getattr(fcntl, name, 0) for name in _CONSTANTS)
"""Constants of `fcntl`; 0 if the system lacks them."""


def folder_flags() -> int:
    """The flags for opening a folder itself, as far as the system has them."""
    names = ("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
    return os.O_RDONLY | functools.reduce(operator.or_, (getattr(os, name, 0) for name in names))


def require_workers(user: str, instead: str) -> None:
    """Raise NotImplementedError if this system does not support worker processes.

    Args:
        user: the name of what needs them: `"MultiSyncDataCollector"`.
        instead: what works here.
    """
    missing = [name for name in OF_WORKERS if not hasattr(os, name)]
    _require(not missing, f"{user} needs worker processes, which need Linux ({', '.join(missing)})", instead)


def require_file_locks(user: str, instead: str) -> None:
    """Like `require_workers`, for systems without file locks."""
    _require(fcntl is not None, f"{user} needs file locks, which POSIX systems have", instead)


def require_polls(user: str, instead: str) -> None:
    """Like `require_workers`, for systems that cannot poll descriptors."""
    _require(hasattr(select, "poll"), f"{user} needs polls of descriptors, which POSIX systems have", instead)


def _require(is_here: bool, need: str, instead: str) -> None:
    if not is_here:
        raise NotImplementedError(f"{need}, and this is {sys.platform}; use {instead}")


def path_of(fd: int) -> str:
    """A path through which an open file can be opened again."""
    folder = "/proc/self/fd" if Path("/proc/self/fd").exists() else "/dev/fd"
    return f"{folder}/{fd}"
