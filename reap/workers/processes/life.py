"""The function that a forked process runs: written to a file by the requesting process, read in the fork.

written("package.module:function", data) --- memfd ---> read: that function, and its data
"""

from __future__ import annotations

import os
from pkgutil import resolve_name
from typing import Any


def written(entry: str, data: bytes) -> int:
    """Write the file of a process, in memory; return its descriptor. Unlike with a message, no process waits until it is read.

    Args:
        entry: a function, `"package.module:function"`, called as `function(descriptors, data)`; it returns the exit code.
        data: the function's argument.
    """
    file = os.memfd_create("reap-life", os.MFD_CLOEXEC)
    try:
        rest = memoryview(entry.encode() + b"\n" + data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.lseek(file, 0, os.SEEK_SET)
    except BaseException:
        os.close(file)
        raise
    return file


def read(descriptor: int) -> tuple[Any, bytes]:
    """Read the function and its data; closes the descriptor."""
    with open(descriptor, "rb") as file:
        entry, _, data = file.read().partition(b"\n")
    return resolve_name(entry.decode()), data
