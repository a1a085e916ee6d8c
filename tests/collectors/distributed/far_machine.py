"""A scheduler of another machine, as far as the network can tell; what the workers that it starts import is loaded already.

    trainer: FarLauncher --- task ---> socket of a folder that both see ---> this program --- fork ---> a worker

python -m tests.collectors.distributed.far_machine SOCKET
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
from pathlib import Path

import torch

import tests.collectors.distributed.far_trainer  # noqa: F401  the envs
from reap.workers.launchers.base import Task
from reap.workers.process_context import RemoteContext
from reap.workers.progress import Control


class FarJob:
    """A process there; see `reap.workers.launchers.base.Job`.

    Args:
        pid: its process id.
    """

    control: Control | None = None
    log: Path | None = None

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_cancelled = False

    @property
    def place(self) -> str:
        return f"pid {self._pid}"

    @property
    def has_ended(self) -> bool:
        return self._is_cancelled  # nobody can tell more from another machine

    @property
    def exit_code(self) -> int | None:
        return None

    @property
    def state(self) -> str:
        return "out of sight"

    def fileno(self) -> int:
        return -1

    def terminate(self) -> None:
        self._is_cancelled = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)

    def kill(self) -> None:
        """A process of another machine cannot be killed over a network that is cut; the scheduler takes note."""
        self._is_cancelled = True

    def close(self) -> None:
        """Nothing is held."""


class FarLauncher:
    """Starts processes there, as a scheduler does on another machine: over no network of theirs.

    Args:
        path: of the socket.
    """

    is_local = False

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def context(self) -> RemoteContext:
        return RemoteContext.capture()

    def launch(self, task: Task) -> FarJob:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(self._path)
            one.sendall(pickle.dumps(task))
            one.shutdown(socket.SHUT_WR)
            return FarJob(int(one.recv(64)))

    def close(self) -> None:
        """Nothing is held."""


def serve(server: socket.socket) -> Task:
    """Fork workers; returns in each of them, with what it is to do."""
    while True:
        one = server.accept()[0]
        with one, one.makefile("rb") as file:
            data = file.read()
            pid = os.fork()
            if pid == 0:
                server.close()
                break
            one.sendall(str(pid).encode())
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return pickle.loads(data)


if __name__ == "__main__":
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers leave nothing to wait for
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("up", flush=True)
        work = serve(listener)
    sys.exit(work.run())
