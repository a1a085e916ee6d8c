"""The seam between a carrier and whoever starts processes for it: forks of this machine, or a cluster's scheduler.

    carrier                      Launcher                        the worker's process
      | launch(task)                |                                   |
      |---------------------------->|------- starts, somewhere -------->| task.run() -> exit code
      |<----------- job ------------|
      | job.has_ended, exit_code, state, log, kill

A launcher only starts and ends processes. How a process and its carrier find and understand each other is what the task brings
along.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Protocol

from reap.workers.process_context import Context
from reap.workers.progress import Control, new_control

LOG_LINES = 20
"""Lines of a log that an error shows."""

LOOK = 0.02
"""Seconds between two looks at jobs that no descriptor tells of."""


@dataclass(frozen=True)
class Task:
    """What a worker's process does; it can be pickled.

    Attributes:
        entry: a function of reap, `"package.module:function"`, called as `entry(data, control)` in the main thread; it returns
            the exit code.
        data: for that function.
        name: of the process.

    Example:
        >>> Task("builtins:len", b"abc", "worker-0").function()(b"abc")
        3
    """

    entry: str
    data: bytes
    name: str

    def function(self) -> Entry:
        """The function that is to be called."""
        return resolve_name(self.entry)

    def run(self, control: Control | None = None) -> int:
        """Do it, in the process that was started for it.

        Args:
            control: the worker's ints, where its launcher sees them; None for ints of its own.
        """
        return self.function()(self.data, new_control() if control is None else control)


class Entry(Protocol):
    """The function of a task."""

    def __call__(self, data: bytes, control: Control, /) -> int:
        """Live the life of the process; returns its exit code."""
        ...


class Job(Protocol):
    """A process that was started, or waits to be; none of its methods waits, except for `kill` with patience."""

    @property
    def place(self) -> str:
        """Where a person finds it: `"pid 4711"`, `"job 17 on node7"`."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended; believed at once."""
        ...

    @property
    def exit_code(self) -> int | None:
        """Why it ended, as multiprocessing has it; None while it runs, or if that cannot be known."""
        ...

    @property
    def state(self) -> str:
        """What its launcher says of it, in words: `"running"`, `"PENDING"`, `"ended with exit code 1"`."""
        ...

    @property
    def log(self) -> Path | None:
        """The file of its output; None where that is the output of this process."""
        ...

    @property
    def control(self) -> Control | None:
        """The worker's ints, where both see them; they stay readable after `close`. None elsewhere."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when it has ended; -1 where there is none, and `has_ended` has to be asked."""
        ...

    def terminate(self) -> None:
        """Ask it to end (SIGTERM); does not wait."""
        ...

    def kill(self) -> None:
        """End it at once; does not wait. Nothing happens if it has ended."""
        ...

    def close(self) -> None:
        """Release what is held here; the process is no longer seen. A second call does nothing."""
        ...


class Launcher(Protocol):
    """Starts processes.

    Attributes:
        is_local: whether they are processes of this machine.
        context: what the processes take over from this one, as it is now.
    """

    is_local: bool

    @property
    def context(self) -> Context:
        """What a process takes over from this one, as it is now."""
        ...

    def launch(self, task: Task) -> Job:
        """Start a process, or ask for it; does not wait until it runs.

        Raises:
            OSError: it cannot be started.
        """
        ...

    def close(self) -> None:
        """Release what the launcher itself uses; its jobs have ended, or are closed."""
        ...


def tail(log: Path | None) -> str:
    """The last lines of a log, or nothing."""
    try:
        text = "" if log is None else log.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LOG_LINES:])


def described(job: Job) -> str:
    """A job in words: where it is, what its launcher says, and where its log is."""
    log = "" if job.log is None else f", log {job.log}"
    return f"{job.place}: {job.state}{log}"


def words_of(job: Job) -> str:
    """A launcher's words on a job that has ended, and its log; nothing where there is none, for the exit code says it all."""
    return "" if job.log is None else f"{job.state}, log {job.log}"


def await_ends(jobs: Iterable[Job], timeout: float) -> Sequence[Job]:
    """Wait until these jobs have ended.

    Args:
        jobs: the jobs.
        timeout: seconds at the most.

    Returns:
        Those that have not.
    """
    deadline = time.monotonic() + timeout
    left = list(jobs)
    while (left := [job for job in left if not job.has_ended]) and (rest := deadline - time.monotonic()) > 0:
        descriptors = [job.fileno() for job in left]
        poll = select.poll()
        for descriptor in descriptors:
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        poll.poll(1000 * (min(LOOK, rest) if min(descriptors) < 0 else rest))
    return left
