"""A small process next to a worker on another machine: it ends the worker when the connection to its group is lost.

A thread of the worker cannot do that while C code holds the interpreter's lock. The process shares the worker's socket, which
it only observes, and ends with the worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

GRACE = 4.0
"""Seconds for the worker to end by itself."""

_CODE = """
import os, select, signal, sys
worker, seconds, connections = int(sys.argv[1]), float(sys.argv[2]), [int(one) for one in sys.argv[3:]]
gone = select.POLLRDHUP | select.POLLHUP | select.POLLERR
poll = select.poll()
poll.register(worker, select.POLLIN)
for one in connections:
    poll.register(one, gone)
if worker not in dict(poll.poll()):
    ended = select.poll()
    ended.register(worker, select.POLLIN)
    if not ended.poll(1000 * seconds):
        signal.pidfd_send_signal(worker, signal.SIGKILL)
"""


class Guard:
    """Guards this process until it ends, or until `dismiss`.

    Args:
        connections: the descriptors of the connections to the group.
        grace: seconds for this process to end by itself.
    """

    def __init__(self, connections: list[int], grace: float = GRACE) -> None:
        worker = os.pidfd_open(os.getpid())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE, str(worker), str(grace), *map(str, connections)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(worker, *connections),
            )
        finally:
            os.close(worker)

    def dismiss(self) -> None:
        """End the guard: this process is exiting normally."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
