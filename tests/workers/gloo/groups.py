"""Groups over gloo, and what the tests ask of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from reap.workers.gloo.group import gloo_group
from reap.workers.launchers.mp import MpLauncher
from reap.workers.remote.group import RemoteGroup


def group_of(make_handlers: Sequence[Any], **options: Any) -> RemoteGroup:
    return gloo_group(make_handlers, options.pop("launcher", None) or MpLauncher(), **options)


def pid_of(group: RemoteGroup, worker: int) -> int:
    """The process of a worker, which it tells in its place."""
    return int(group.carrier.place(worker).rpartition("pid ")[2].split()[0])


def pids_of(group: RemoteGroup) -> list[int]:
    return [pid_of(group, worker) for worker in range(group.size)]


def listening() -> list[str]:
    """Addresses on which this process, or one of its children, listens by TCP: hexadecimal, as the kernel shows them."""
    inodes = set()
    for pid in ["self", *children()]:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{pid}/fd/{name}").removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as file:
            rows = [line.split() for line in file.readlines()[1:]]
        found += [row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]
    return found


def children() -> list[str]:
    parents, found = [str(os.getpid())], []
    while parents:
        pid = parents.pop()
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                own = file.read().split()
            found += own
            parents += own
    return found
