"""`SubmititLauncher`: starts jobs on a SLURM cluster, or on this machine, by submitit.

    launch(task) ---> executor.submit(task.run) ---> a job's process
    has_ended   <--- job.done()                      polled: no descriptor reports it

A worker that has lost its connection to its carrier ends by itself; `kill` cancels its job, which may take a scheduler some
time.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reap.errors import OptionError, headline
from reap.optional import load
from reap.workers.launchers.base import Task
from reap.workers.launchers.local_jobs import end_local
from reap.workers.process_context import RemoteContext
from reap.workers.progress import Control

DEFAULT_SLURM_CONF: Mapping[str, Any] = {
    "timeout_min": 10,
    "slurm_partition": "train",
    "slurm_cpus_per_task": 32,
    "slurm_gpus_per_node": 0,
}
"""Parameters of the executor made if none is given; the same as torchrl's."""

FOLDER = "reap_jobs/%j"
"""Folder for the files of jobs, below the working directory, because workers on other machines must see it."""

PATIENCE = 0.2
"""Seconds for which the answer to whether a job has ended is cached, because asking may start a program."""


class SubmititJob:
    """A job; see `reap.workers.launchers.base.Job`.

    Args:
        job: submitit's job.
    """

    control: Control | None = None

    def __init__(self, job: Any) -> None:
        self._job = job
        self._has_ended = False
        self._asked = 0.0

    @property
    def place(self) -> str:
        """The number of the job."""
        return f"job {self._job.job_id}"

    @property
    def has_ended(self) -> bool:
        """Whether its result is available, or the scheduler reports its end."""
        if not self._has_ended and time.monotonic() >= self._asked:
            self._has_ended = bool(self._job.done())
            self._asked = time.monotonic() + PATIENCE
        return self._has_ended

    @property
    def exit_code(self) -> int | None:
        """The task's result, or 1 after an exception; None for a job that left neither."""
        if not self.has_ended or not self._job.paths.result_pickle.exists():
            return None
        try:
            return int(self._job.result())
        except Exception:  # noqa: BLE001  whatever the task raised
            return 1

    @property
    def state(self) -> str:
        """The scheduler's state, which does not tell of exceptions."""
        return f"{self._job.state}, with an exception" if self.exit_code == 1 else str(self._job.state)

    @property
    def log(self) -> Path | None:
        """The file of its stderr; stdout is beside it."""
        return Path(self._job.paths.stderr)

    def fileno(self) -> int:
        """-1: no descriptor reports its end."""
        return -1

    def terminate(self) -> None:
        """Send SIGTERM, or cancel it: a scheduler sends SIGTERM first."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, or cancel it."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        self._asked = 0.0
        if not self.has_ended:
            with contextlib.suppress(Exception):  # the scheduler's program, which may fail in any way
                is_local = isinstance(self._job, load("submitit").LocalJob)
                if not (is_local and end_local(int(self._job.job_id), number)):
                    self._job.cancel(check=False)
            self._asked = 0.0

    def close(self) -> None:
        """Nothing to release; its files stay, because they are its log."""
        self._has_ended = True


class SubmititLauncher:
    """Submits jobs; see `reap.workers.launchers.base.Launcher`.

    Args:
        executor: submitit's executor, used as it is. None makes one for the current cluster.
        parameters: for the executor that is made, in addition to `DEFAULT_SLURM_CONF`.

    Raises:
        ImportError: submitit is not installed.
        OptionError: submitit does not have a parameter, or the executor runs jobs in this process.
    """

    is_local = False

    def __init__(self, executor: Any = None, parameters: Mapping[str, Any] | None = None) -> None:
        if executor is None:
            executor = made_executor({**DEFAULT_SLURM_CONF, **(parameters or {})})
        elif parameters:
            raise OptionError("slurm_kwargs and an executor: expected one of them; the executor has its parameters already")
        if "debug" in (getattr(executor, "cluster", None), executor.name()):
            raise OptionError("launcher: submitit's debug executor runs jobs in this process, one after the other; use 'local'")
        self._executor = executor

    @property
    def context(self) -> RemoteContext:
        """Only settings that mean the same on any machine."""
        return RemoteContext.capture()

    def launch(self, task: Task) -> SubmititJob:
        """Submit a job for a task; see `Launcher`."""
        return SubmititJob(self._executor.submit(task.run))

    def close(self) -> None:
        """Nothing to release: the executor holds nothing, or belongs to the user."""


def made_executor(parameters: Mapping[str, Any]) -> Any:
    """An executor for the current cluster, or for this machine.

    Args:
        parameters: submitit's; `folder` is the folder for the files of jobs, `cluster` chooses the executor.

    Raises:
        ImportError: submitit is not installed.
        OptionError: submitit does not have a parameter.
    """
    submitit = load("submitit", 'launcher="submitit"')
    given = dict(parameters)
    executor = submitit.AutoExecutor(folder=given.pop("folder", FOLDER), cluster=given.pop("cluster", None))
    try:
        executor.update_parameters(**given)
    except (TypeError, ValueError, NameError, AssertionError) as error:
        raise OptionError(f"slurm_kwargs: {headline(error)}") from error
    return executor
