"""`MpLauncher`: starts processes on this machine, forked in milliseconds by a server that has torch loaded.

    launch(task) ---> fork server ---fork---> live: task.run()
    has_ended   <--- pidfd ------------------- end
    exit_code   <--- status pipe (reap.workers.processes.fork_server)

The server kills them when the process that launched them ends; the kernel kills them when the server ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import traceback
from pathlib import Path

from reap.workers.launchers.base import Task
from reap.workers.process_context import ProcessContext
from reap.workers.processes import fork_client
from reap.workers.processes.child import Descriptors, name_process, reseed
from reap.workers.processes.control import ControlBlock
from reap.workers.processes.fork_client import STATUS, Launched
from reap.workers.processes.life import written
from reap.workers.progress import Control

LIFE = f"{__name__}:live"


class ForkedJob:
    """A process that the fork server has made; see `reap.workers.launchers.base.Job`.

    Args:
        launched: the process.
        control: its control ints.
    """

    def __init__(self, launched: Launched, control: Control) -> None:
        self._pid = launched.pid
        self._pidfd, self._status = launched.pidfd, launched.status
        self._exit_code: int | None = None
        self.control: Control | None = control

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pid

    @property
    def place(self) -> str:
        """The process id."""
        return f"pid {self._pid}"

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._exit_code is not None or self._pidfd < 0 or _is_readable(self._pidfd)

    @property
    def exit_code(self) -> int | None:
        """As in multiprocessing; that of SIGKILL if its server was killed, since the kernel then kills it."""
        if self._exit_code is None and self._status >= 0 and self.has_ended:
            data = os.read(self._status, STATUS.size)  # the server writes it, or is gone
            self._exit_code = STATUS.unpack(data)[0] if len(data) == STATUS.size else -signal.SIGKILL
        return self._exit_code

    @property
    def state(self) -> str:
        """Whether it is running, or how it ended."""
        return f"ended with exit code {self.exit_code}" if self.has_ended else "running"

    @property
    def log(self) -> Path | None:
        """None: it writes to the output of this process."""
        return None

    def fileno(self) -> int:
        """The pidfd."""
        return self._pidfd

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Close the descriptors; a known exit code stays available."""
        if self._pidfd >= 0:
            self.exit_code  # noqa: B018  read for later
            os.close(self._pidfd)
            os.close(self._status)
        self._pidfd = self._status = -1


class MpLauncher:
    """Starts processes on this machine; see `reap.workers.launchers.base.Launcher`.

    Example:
        >>> launcher = MpLauncher()
        >>> job = launcher.launch(Task("reap.workers.launchers.mp:example", b"", "example"))
        >>> from reap.workers.launchers.base import await_ends
        >>> await_ends([job], timeout=30.0)
        []
        >>> job.exit_code
        3
        >>> job.close()
    """

    is_local = True

    @property
    def context(self) -> ProcessContext:
        """Environment, directory, paths, and all other settings that are the same on this machine."""
        return ProcessContext.capture()

    def launch(self, task: Task) -> ForkedJob:
        """Fork a process for a task; see `Launcher`."""
        block = ControlBlock(1)
        file = written(LIFE, pickle.dumps(task))
        try:
            return ForkedJob(fork_client.fork(file, block.descriptor, file), block.of(0))
        finally:
            os.close(file)
            block.close()

    def close(self) -> None:
        """Nothing to release."""


def live(descriptors: Descriptors, data: bytes) -> int:
    """Run a task, in a process that was forked for it."""
    task: Task = pickle.loads(data)
    name_process(task.name)
    reseed()
    os.close(descriptors.channel)
    block = ControlBlock(1, descriptors.control)
    block.close()
    try:
        return task.run(block.of(0))
    except Exception:  # noqa: BLE001  nobody else would show it
        traceback.print_exc()
        return 1


def example(_data: bytes, _control: Control) -> int:
    """End with exit code 3."""
    return 3


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
