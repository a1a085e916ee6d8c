"""A disk of a few megabytes, for a script that fills it: a tmpfs in a user namespace, where nobody has to be root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

import pytest

from tests.architecture import ROOT


def on_small_disk(
    script: str, megabytes: int, *, kind: str = "tmpfs", timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder of its own, which is all of a disk of that size.

    A machine that allows no user namespaces cannot run it; then the test says so.
    """
    require_small_disks()
    mount = f'mount -t {kind} -o size={megabytes}m none /mnt && cd /mnt && exec "$0" -c "$1"'
    command = ["unshare", "-rm", "bash", "-c", mount, sys.executable, script]
    surroundings = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    return subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=120, check=False)


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
