"""`WorkerProcess`: a worker's process as its parent sees it; ends several of them at once."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Sequence

from reap.workers.processes import fork_client
from reap.workers.processes.channel import Incoming
from reap.workers.processes.fork_client import STATUS, Launched
from reap.workers.processes.life import written

LIFE = "reap.workers.processes.child:answer"

ASKED = 0.2
"""Maximum number of seconds between asking workers to leave and SIGTERM."""
ENDING = 0.1
"""Seconds for a process to end after its channel was closed, which a normal exit does first."""
KILLED = 1.0
"""Seconds for killed processes to disappear; only the kernel can keep them longer."""


class WorkerProcess:
    """A worker's process: its channel, its pidfd, its status pipe.

    Attributes:
        pid: process id.
        end: this end of its channel.
        status: descriptor of its status pipe; -1 once closed.
        exit_code: as in multiprocessing; None while it runs.
        is_full: whether its socket accepted only a part of a command.
        incoming: the message that is arriving, or will arrive next.
    """

    def __init__(self, launched: Launched, end: socket.socket) -> None:
        self.pid = launched.pid
        self.end = end
        self.status = launched.status
        self.exit_code: int | None = None
        self.is_full = False
        self.incoming = Incoming()
        self._pidfd = launched.pidfd

    def kill(self, number: int | None = None) -> None:
        """Send a signal, SIGKILL by default; does nothing if the process has ended."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL if number is None else number)

    def cut_off(self) -> None:
        """Handle a closed channel: kill the process unless it is ending."""
        if not self._ends_within(ENDING):
            self.kill()

    def _ends_within(self, seconds: float) -> bool:
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return bool(ended.poll(seconds * 1000))

    def read_status(self) -> int:
        """Read the exit code from the readable status pipe.

        If there is none, the server has been killed, and the kernel kills its workers.
        """
        if self.exit_code is not None:
            return self.exit_code
        data = os.read(self.status, STATUS.size)
        code = STATUS.unpack(data)[0] if len(data) == STATUS.size else -signal.SIGKILL
        if len(data) < STATUS.size:
            self._ends_within(KILLED)
        self.exit_code = code
        return code

    def hang_up(self) -> None:
        """Tell the worker that no more commands will come, and no reply is wanted."""
        with contextlib.suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptors."""
        self.end.close()
        for descriptor in (self.status, self._pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self.status = self._pidfd = -1


def launched(control: int, spec: bytes) -> WorkerProcess:
    """Launch a worker.

    Args:
        control: the descriptor of the control block.
        spec: a pickled `reap.workers.handler_spec.HandlerSpec`.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    file = -1
    try:
        file = written(LIFE, spec)
        return WorkerProcess(fork_client.fork(theirs.fileno(), control, file), ours)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        if file >= 0:
            os.close(file)


def kill(processes: Sequence[WorkerProcess]) -> None:
    """Kill these workers and wait until they are gone; closes their descriptors."""
    try:
        for process in processes:
            process.kill()
        _wait(processes, time.monotonic() + KILLED)
    finally:
        for process in processes:
            process.close()


def end(processes: Sequence[WorkerProcess], timeout: float) -> None:
    """Ask these workers to leave, then terminate them, and kill those still running at the deadline."""
    deadline = time.monotonic() + timeout
    try:
        for process in processes:
            process.hang_up()
        _wait(processes, time.monotonic() + min(ASKED, timeout / 4))
        for process in processes:
            process.kill(signal.SIGTERM)
        _wait(processes, deadline)
    finally:
        kill(processes)


def _wait(processes: Sequence[WorkerProcess], deadline: float) -> None:
    running = {process.status: process for process in processes if process.status >= 0 and process.exit_code is None}
    poll = select.poll()
    for status in running:
        poll.register(status, select.POLLIN)
    while running and (left := deadline - time.monotonic()) > 0:
        for status, _ in poll.poll(left * 1000):
            running.pop(status).read_status()
            poll.unregister(status)
