"""`submitit_delayed_launcher`, for clusters whose jobs cannot submit others: a program and its workers are submitted together.

    submitting machine      submit(program), submit(agent 0), submit(agent 1), ...
    program's job           DelayedLauncher: writes folder/0/1.task ----.
    agent's job             reads it, forks the worker, writes 1.ended <-'

They meet in a folder that all machines see, like submitit's own, so the program's machine need not be known in advance. An
agent runs one worker at a time, one after another, until the program has ended.
"""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reap.errors import OptionError
from reap.option_values import is_count
from reap.workers.launchers.base import Task
from reap.workers.launchers.mp import ForkedJob, MpLauncher
from reap.workers.launchers.submitit import DEFAULT_SLURM_CONF, SubmititJob, made_executor
from reap.workers.process_context import RemoteContext
from reap.workers.progress import Control

DEFAULT_SLURM_CONF_MAIN: Mapping[str, Any] = {**DEFAULT_SLURM_CONF, "slurm_gpus_per_node": 1}
"""Default parameters of the program's job."""

VARIABLE = "REAP_DELAYED_JOBS"
"""The environment variable that tells the program the folder."""

FOLDER = "reap_jobs"
LOOK = 0.1
"""Seconds between two checks of the folder."""

ENDING = 10.0
"""Seconds for agents to end after the program has ended; then their jobs are cancelled."""


class submitit_delayed_launcher:  # noqa: N801  torchrl's name
    """Decorator that makes a function submit itself, as a program, together with its workers.

    In the program, `launcher="submitit_delayed"` runs a collector's workers in the jobs that were submitted with it.

    Args:
        num_jobs: number of jobs, one per worker.
        framework: `"distributed"` or `"rpc"`; both work in the same way.
        backend: ignored; use the collector's option `backend`.
        tcpport: must be None; use the collector's option `tcp_port`.
        submitit_main_conf: parameters of the executor for the program.
        submitit_collection_conf: parameters of the executor for the workers.

    Raises:
        OptionError: an argument that cannot work.

    Example:
        >>> @submitit_delayed_launcher(num_jobs=2)
        ... def main():
        ...     from reap.collectors.distributed import DistributedDataCollector
        ...
        ...     with DistributedDataCollector(
        ...         ["CartPole-v1"] * 2, frames_per_batch=100, total_frames=1000, launcher="submitit_delayed"
        ...     ) as collector:
        ...         for batch in collector:
        ...             print(batch.batch_size)
        >>> main()  # doctest: +SKIP
    """

    def __init__(
        self,
        num_jobs: Any,
        framework: str = "distributed",
        backend: str = "gloo",
        tcpport: Any = None,
        submitit_main_conf: Mapping[str, Any] = DEFAULT_SLURM_CONF_MAIN,
        submitit_collection_conf: Mapping[str, Any] = DEFAULT_SLURM_CONF,
    ) -> None:
        if not is_count(num_jobs):
            raise OptionError(f"num_jobs: expected a positive number of jobs, got {num_jobs!r}")
        if framework not in {"distributed", "rpc"}:
            raise OptionError(f'framework: expected "distributed" or "rpc", got {framework!r}')
        self._jobs = num_jobs
        self._main_conf, self._conf = submitit_main_conf, submitit_collection_conf

    def __call__(self, main: Callable[[], Any]) -> Callable[[], Any]:
        """The function that submits `main` and the workers, waits for its end, and returns its result."""

        def submit() -> Any:
            folder = (Path(FOLDER) / f"delayed-{uuid.uuid4().hex}").resolve()
            for number in range(self._jobs):
                (folder / str(number)).mkdir(parents=True)
            program = made_executor(self._main_conf).submit(_run, main, str(folder))
            executor = made_executor(self._conf)
            agents = [executor.submit(serve_tasks, str(folder / str(number))) for number in range(self._jobs)]
            try:
                return program.result()
            finally:
                (folder / "over").touch()
                _end(agents)

        return submit


def _end(agents: list[Any]) -> None:
    deadline = time.monotonic() + ENDING
    while not all(agent.done() for agent in agents) and time.monotonic() < deadline:
        time.sleep(LOOK)
    for agent in agents:
        SubmititJob(agent).kill()


def _run(main: Callable[[], Any], folder: str) -> Any:
    """Run as the program."""
    os.environ[VARIABLE] = folder
    try:
        return main()
    finally:
        (Path(folder) / "over").touch()


def serve_tasks(folder: str) -> int:
    """Run as an agent: carry out the tasks in a folder, one after another, until the program is over.

    Args:
        folder: the agent's folder.

    Returns:
        The number of tasks.
    """
    own, number = Path(folder), 0
    while not (own.parent / "over").exists():
        file = own / f"{number + 1}.task"
        if file.exists():
            number += 1
            _serve(own, number, pickle.loads(file.read_bytes()))
        time.sleep(LOOK)
    return number


def _serve(own: Path, number: int, task: Task) -> None:
    job: ForkedJob = MpLauncher().launch(task)
    _write(own / f"{number}.begun", f"{job.place} on {os.uname().nodename}".encode())
    try:
        while not job.has_ended:
            if (own / f"{number}.kill").exists() or (own.parent / "over").exists():
                job.kill()
            time.sleep(LOOK)
    finally:
        _write(own / f"{number}.ended", str(job.exit_code).encode())
        job.close()


def _write(file: Path, data: bytes) -> None:
    """Write a file atomically: others see all of it or nothing."""
    new = file.with_suffix(".new")
    new.write_bytes(data)
    new.rename(file)


class DelayedJob:
    """A worker in an agent's job; see `reap.workers.launchers.base.Job`.

    Args:
        folder: the agent's folder.
        number: the number of the task.
    """

    control: Control | None = None

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number

    def _file(self, kind: str) -> Path:
        return self._folder / f"{self._number}.{kind}"

    @property
    def place(self) -> str:
        """Its agent, and its process once that has started."""
        begun = self._file("begun")
        return f"delayed job {self._folder.name}" + (f", {begun.read_text()}" if begun.exists() else "")

    @property
    def has_ended(self) -> bool:
        """Whether its agent has reported its end."""
        return self._file("ended").exists()

    @property
    def exit_code(self) -> int | None:
        """The exit code that its agent has reported."""
        return int(self._file("ended").read_text()) if self.has_ended else None

    @property
    def state(self) -> str:
        """Whether it is waiting, running or has ended."""
        if self.has_ended:
            return f"ended with exit code {self.exit_code}"
        return "running" if self._file("begun").exists() else "waiting for its job to start"

    @property
    def log(self) -> Path | None:
        """None: its output is in the log of its agent's job, which only the submitting machine knows."""
        return None

    def fileno(self) -> int:
        """-1: no descriptor reports its end."""
        return -1

    def terminate(self) -> None:
        """Have its agent kill it, since agents pass on no other signal."""
        self.kill()

    def kill(self) -> None:
        """Have its agent kill it."""
        self._file("kill").touch()

    def close(self) -> None:
        """Nothing to release."""


class DelayedLauncher:
    """Runs workers in the jobs that were submitted with this program; see `reap.workers.launchers.base.Launcher`.

    Raises:
        OptionError: this program was not submitted by `submitit_delayed_launcher`.
    """

    is_local = False

    def __init__(self) -> None:
        folder = os.environ.get(VARIABLE)
        if not folder:
            raise OptionError(
                'launcher="submitit_delayed": expected a program that submitit_delayed_launcher has submitted, with its '
                'workers; elsewhere use launcher="submitit"'
            )
        self._agents = sorted((one for one in Path(folder).iterdir() if one.is_dir()), key=lambda one: int(one.name))

    @property
    def context(self) -> RemoteContext:
        """Only settings that mean the same on any machine."""
        return RemoteContext.capture()

    def launch(self, task: Task) -> DelayedJob:
        """Give a task to the agent that has had the fewest tasks; see `Launcher`."""
        free = [(number, agent) for agent in self._agents if (number := _number_of_next(agent))]
        if not free:
            raise OSError(
                f"all {len(self._agents)} jobs that were submitted with this program have a worker: increase num_jobs"
            )
        number, agent = min(free)
        _write(agent / f"{number}.task", pickle.dumps(task))
        return DelayedJob(agent, number)

    def close(self) -> None:
        """Nothing to release: the jobs serve other collectors of the program."""


def _number_of_next(agent: Path) -> int:
    """The number of an agent's next task; 0 while it has one."""
    given = len(list(agent.glob("*.task")))
    return given + 1 if len(list(agent.glob("*.ended"))) == given else 0
