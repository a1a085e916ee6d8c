"""A disk of a few megabytes, for a script that fills it: a tmpfs in a user namespace, where nobody has to be root."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

import pytest

from tests import warm

MOUNT = """
def mount(kind, megabytes):  # what unshare -rm and mount do, in a process that runs already
    import ctypes, os
    from pathlib import Path
    libc, ids = ctypes.CDLL(None, use_errno=True), {"uid": os.geteuid(), "gid": os.getegid()}
    def call(name, *arguments):
        if getattr(libc, name)(*arguments):
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    new_mounts, new_users, private, below = 0x20000, 0x10000000, 0x40000, 0x4000
    call("unshare", new_mounts | new_users)
    Path("/proc/self/setgroups").write_text("deny")
    for name, number in ids.items():
        Path(f"/proc/self/{name}_map").write_text(f"0 {number} 1")
    call("mount", b"none", b"/", None, private | below, None)
    call("mount", b"none", b"/mnt", kind.encode(), 0, b"size=%dm" % megabytes)
    os.chdir("/mnt")
"""


def on_small_disk(
    script: str, megabytes: int, *, kind: str = "tmpfs", timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder of its own, which is all of a disk of that size.

    A machine that allows no user namespaces cannot run it; then the test says so.
    """
    require_small_disks()
    done = warm.run(f"{MOUNT}\nmount({kind!r}, {megabytes})\n{script}", timeout=timeout)
    return subprocess.CompletedProcess(script, *done)


def require_small_disks() -> None:
    """Skip the test, saying what the machine lacks, where no disk can be made."""
    if lacking := _lacking():
        pytest.skip(lacking)


@cache
def _lacking() -> str:
    if shutil.which("unshare") is None:
        return "this machine lacks unshare (util-linux), which makes a small disk"
    tried = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]
    done = subprocess.run(tried, capture_output=True, text=True, check=False)
    return f"this machine lets nobody mount a small disk in a user namespace: {done.stderr.strip()}" if done.returncode else ""
