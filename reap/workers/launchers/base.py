"""`Launcher`: the interface between a carrier and whatever starts its processes, such as a cluster's scheduler.

    carrier                      Launcher                        the worker's process
      | launch(task)                |                                   |
      |---------------------------->|------- starts, somewhere -------->| task.run() -> exit code
      |<----------- job ------------|
      | job.has_ended, exit_code, state, log, kill

A launcher only starts and ends processes. The task holds all that a process needs to find its carrier and talk to it.
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
"""Number of log lines that an error shows."""

LOOK = 0.02
"""Seconds between two checks of jobs without a descriptor that reports their end."""


@dataclass(frozen=True)
class Task:
    """The work of a worker's process; can be pickled.

    Attributes:
        entry: a function of reap, `"package.module:function"`, called as `entry(data, control)` in the main thread; it returns
            the exit code.
        data: the function's argument.
        name: the name of the process.

    Example:
        >>> Task("builtins:len", b"abc", "worker-0").function()(b"abc")
        3
    """

    entry: str
    data: bytes
    name: str

    def function(self) -> Entry:
        """The function to call."""
        return resolve_name(self.entry)

    def run(self, control: Control | None = None) -> int:
        """Run the task, in the process that was started for it.

        Args:
            control: the worker's control ints if its launcher can see them; None for private ones.
        """
        return self.function()(self.data, new_control() if control is None else control)


class Entry(Protocol):
    """The function of a task."""

    def __call__(self, data: bytes, control: Control, /) -> int:
        """Run the process; return its exit code."""
        ...


class Job(Protocol):
    """A process that was started, or waits to be started; none of its methods waits, except for `kill` with patience."""

    @property
    def place(self) -> str:
        """Its location, for messages to people: `"pid 4711"`, `"job 17 on node7"`."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended."""
        ...

    @property
    def exit_code(self) -> int | None:
        """Its exit code, as in multiprocessing; None while it runs, or if unknown."""
        ...

    @property
    def state(self) -> str:
        """Its state in the launcher's words: `"running"`, `"PENDING"`, `"ended with exit code 1"`."""
        ...

    @property
    def log(self) -> Path | None:
        """The file of its output; None if it writes to the output of this process."""
        ...

    @property
    def control(self) -> Control | None:
        """The worker's control ints if both processes see them, else None; they stay readable after `close`."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable once it has ended; -1 if there is none, so that `has_ended` must be polled."""
        ...

    def terminate(self) -> None:
        """Ask it to end (SIGTERM); does not wait."""
        ...

    def kill(self) -> None:
        """End it at once, without waiting; does nothing if it has ended."""
        ...

    def close(self) -> None:
        """Release the resources held here and stop observing the process. A second call does nothing."""
        ...


class Launcher(Protocol):
    """Starts processes.

    Attributes:
        is_local: whether the processes run on this machine.
        context: the settings that the processes take over from this one, as of now.
    """

    is_local: bool

    @property
    def context(self) -> Context:
        """The settings that a process takes over from this one, as of now."""
        ...

    def launch(self, task: Task) -> Job:
        """Start a process, or request it; does not wait until it runs.

        Raises:
            OSError: it cannot be started.
        """
        ...

    def close(self) -> None:
        """Release the launcher's own resources; its jobs have ended or are closed."""
        ...


def tail(log: Path | None) -> str:
    """The last lines of a log; empty if there is none."""
    try:
        text = "" if log is None else log.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LOG_LINES:])


def described(job: Job) -> str:
    """A text that describes a job: its location, its state, and its log file."""
    log = "" if job.log is None else f", log {job.log}"
    return f"{job.place}: {job.state}{log}"


def words_of(job: Job) -> str:
    """A text for the end of a job, with its state and its log; empty without a log, since the exit code is enough then."""
    return "" if job.log is None else f"{job.state}, log {job.log}"


def await_ends(jobs: Iterable[Job], timeout: float) -> Sequence[Job]:
    """Wait until these jobs have ended.

    Args:
        jobs: the jobs.
        timeout: maximum number of seconds.

    Returns:
        Those that have not ended.
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
