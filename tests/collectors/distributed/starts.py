"""Collectors whose start is interrupted: what tells that a worker has come to a certain point, and Ctrl-C at that point."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reap.workers.launchers.mp import MpLauncher


class Point:
    """A point in a worker that it does not leave: it tells its process there.

    Args:
        folder: of its pipe.
    """

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "point")
        os.mkfifo(self.path)

    def __call__(self, *_: Any) -> Any:
        with open(self.path, "w", encoding="utf-8") as pipe:
            pipe.write(f"{os.getpid()}\n")
        time.sleep(600)  # longer than any test

    def interrupts(self, build: Callable[[], Any]) -> int:
        """Build something, with Ctrl-C when a worker has come to this point; the process of that worker."""
        pids: list[int] = []
        main = threading.get_ident()

        def interrupt() -> None:
            with open(self.path, encoding="utf-8") as pipe:
                pids.append(int(pipe.readline()))
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        try:
            thread.start()
            build()
        except KeyboardInterrupt:
            thread.join()
        else:
            raise AssertionError("nothing was interrupted")
        return pids[0]


class NeverMeets(MpLauncher):
    """Starts processes that come to a point in place of meeting their collector."""

    def __init__(self, point: Point) -> None:
        super().__init__()
        self._point = point

    def launch(self, task: Any) -> Any:
        return super().launch(type(task)(f"{__name__}:come_to", self._point.path.encode(), task.name))


class Interrupted(MpLauncher):
    """Ctrl-C comes when it has started a process, and has not told of it yet.

    Attributes:
        pids: its processes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pids: list[int] = []

    def launch(self, task: Any) -> Any:
        job = super().launch(task)
        self.pids.append(job.pid)
        signal.raise_signal(signal.SIGINT)
        return job


def come_to(path: bytes, _control: Any) -> int:
    """What such a process does."""
    point = object.__new__(Point)
    point.path = path.decode()
    point()
    return 0
