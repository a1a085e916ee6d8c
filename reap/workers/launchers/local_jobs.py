"""`end_local`: ends a job of submitit's local executor without a word.

    this process ---> (a shell, if the executor has a `setup`) ---> controller ---> task: the worker

`cancel` interrupts the controller, which then prints a traceback to the output of this program. Here the signal goes to its
tasks, and it ends with them as it does after any other end of theirs.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence

CONTROLLER = b"submitit.local._local"
"""The module that a controller runs, among its arguments."""


def end_local(pid: int, number: int) -> bool:
    """Send a signal to the tasks of a job; one that has no task yet is killed.

    Args:
        pid: the job's number, which is the process that the executor has started; a child of this process, not waited for yet.
        number: the signal.

    Returns:
        Whether the job's controller was found.
    """
    controller = next((one for one in (pid, *_children(pid)) if CONTROLLER in _arguments(one)), None)
    if controller is None:
        return False
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(controller, signal.SIGSTOP)  # it starts no task meanwhile
        try:
            tasks = _children(controller)
            for task in tasks:
                os.kill(task, number)
            if not tasks:
                os.kill(pid, signal.SIGKILL)  # first: a shell would tell of the end of its child
                os.kill(controller, signal.SIGKILL)
        finally:
            os.kill(controller, signal.SIGCONT)
    return True


def _children(pid: int) -> Sequence[int]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(one) for one in file.read().split()]
    return []


def _arguments(pid: int) -> Sequence[bytes]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\0")
    return []
