"""`SubmititLauncher`: jobs of a SLURM cluster, or of this machine, by submitit.

    launch(task) ---> executor.submit(task.run) ---> a job's process
    has_ended   <--- job.done()                      asked for now and then: no descriptor tells of it

A worker that has no line to its carrier any more ends by itself; `kill` cancels its job, which a scheduler may take its time
to do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reap.errors import OptionError, headline
from reap.optional import load
from reap.workers.launchers.base import Task
from reap.workers.process_context import RemoteContext
from reap.workers.progress import Control

DEFAULT_SLURM_CONF: Mapping[str, Any] = {
    "timeout_min": 10,
    "slurm_partition": "train",
    "slurm_cpus_per_task": 32,
    "slurm_gpus_per_node": 0,
}
"""Parameters of the executor that is made where none is given, as torchrl has them."""

FOLDER = "reap_jobs/%j"
"""Where jobs keep their files, below the working directory; workers must see it, so that it is no directory of one machine."""

PATIENCE = 0.2
"""Seconds for which the answer to whether a job has ended is believed: asking may start a program."""


class SubmititJob:
    """A job; see `reap.workers.launchers.base.Job`.

    Args:
        job: submitit's.
    """

    control: Control | None = None

    def __init__(self, job: Any) -> None:
        self._job = job
        self._has_ended = False
        self._asked = 0.0

    @property
    def place(self) -> str:
        """Its number."""
        return f"job {self._job.job_id}"

    @property
    def has_ended(self) -> bool:
        """Whether its result is there, or the scheduler says so."""
        if not self._has_ended and time.monotonic() >= self._asked:
            self._has_ended = bool(self._job.done())
            self._asked = time.monotonic() + PATIENCE
        return self._has_ended

    @property
    def exit_code(self) -> int | None:
        """What its task returned, or 1 for an exception; None for a job that left neither."""
        if not self.has_ended or not self._job.paths.result_pickle.exists():
            return None
        try:
            return int(self._job.result())
        except Exception:  # noqa: BLE001  whatever the task raised
            return 1

    @property
    def state(self) -> str:
        """The scheduler's word, which says nothing of exceptions."""
        return f"{self._job.state}, with an exception" if self.exit_code == 1 else str(self._job.state)

    @property
    def log(self) -> Path | None:
        """The file of its stderr; stdout is beside it."""
        return Path(self._job.paths.stderr)

    def fileno(self) -> int:
        """None tells of its end."""
        return -1

    def terminate(self) -> None:
        """Cancel it: a scheduler sends SIGTERM first."""
        self.kill()

    def kill(self) -> None:
        """Cancel it."""
        if not self.has_ended:
            with contextlib.suppress(Exception):  # the scheduler's program, which may fail in any way
                self._job.cancel(check=False)
            self._asked = 0.0

    def close(self) -> None:
        """Forget it; its files stay, for they are its log."""
        self._has_ended = True


class SubmititLauncher:
    """Has jobs submitted; see `reap.workers.launchers.base.Launcher`.

    Args:
        executor: submitit's; it is used as it is. None makes one for the cluster that there is.
        parameters: of the executor that is made, beside `DEFAULT_SLURM_CONF`.

    Raises:
        ImportError: submitit is not installed.
        OptionError: a parameter is none of submitit's, or the executor runs jobs in this process.
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
        """Only what means the same on any machine."""
        return RemoteContext.capture()

    def launch(self, task: Task) -> SubmititJob:
        """Submit a job for a task; see `Launcher`."""
        return SubmititJob(self._executor.submit(task.run))

    def close(self) -> None:
        """The executor is the user's, or holds nothing."""


def made_executor(parameters: Mapping[str, Any]) -> Any:
    """An executor for the cluster that there is, or for this machine.

    Args:
        parameters: submitit's; `folder` is where jobs keep their files, `cluster` which executor it is to be.

    Raises:
        ImportError: submitit is not installed.
        OptionError: a parameter is none of submitit's.
    """
    submitit = load("submitit", 'launcher="submitit"')
    given = dict(parameters)
    executor = submitit.AutoExecutor(folder=given.pop("folder", FOLDER), cluster=given.pop("cluster", None))
    try:
        executor.update_parameters(**given)
    except (TypeError, ValueError, NameError, AssertionError) as error:
        raise OptionError(f"slurm_kwargs: {headline(error)}") from error
    return executor
