"""`Setup`: a collector with its workers and envs, as an object that builds it and as lines of Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from reap.collectors.base import DataCollectorBase
from reap.collectors.local import SyncDataCollector
from reap.collectors.multi import MultiaSyncDataCollector, MultiSyncDataCollector
from reap.envs.parallel.env import ParallelEnv
from reap.envs.serial import SerialEnv
from reap.words import counted

ENVS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of envs of one process that are tried."""

TEMPLATE = """\
{torch}from reap import {imported}

{threads}collector = {name}(
    {env},
    {policy},
    frames_per_batch={frames:_},
)"""


class Kind(Enum):
    """Who steps the envs.

    Attributes:
        SYNC: this process, one after the other.
        PARALLEL: a `ParallelEnv`, whose steps this process waits for.
        OVERLAP: a `ParallelEnv(overlap=True)`: one half of the envs is stepped while the policy acts for the other.
        MULTI_SYNC: workers, each with its own policy; a batch holds a rollout of each.
        MULTI_ASYNC: the same; a batch is the rollout of whichever comes first.
    """

    SYNC = "SyncDataCollector"
    PARALLEL = "ParallelEnv"
    OVERLAP = "ParallelEnv, overlap"
    MULTI_SYNC = "MultiSyncDataCollector"
    MULTI_ASYNC = "MultiaSyncDataCollector"


WITH_PARALLEL_ENV = frozenset({Kind.PARALLEL, Kind.OVERLAP})
WITH_WORKERS = {Kind.MULTI_SYNC: MultiSyncDataCollector, Kind.MULTI_ASYNC: MultiaSyncDataCollector}


@dataclass(frozen=True)
class Setup:
    """One way to collect.

    Attributes:
        kind: who steps the envs.
        envs: number of envs of each worker, or of the collector if it has no workers.
        workers: number of processes that step envs; 1 for `SYNC`.
        threads: number of torch threads in the process of the policy, if that is the trainer's; workers have one each.
    """

    kind: Kind
    envs: int
    workers: int = 1
    threads: int = 1

    def __str__(self) -> str:
        return " ".join((self.kind.value, *filter(None, (self.processes, self.sizes))))

    @property
    def processes(self) -> str:
        """`"2 workers"`, `"2 processes"`, or nothing."""
        noun = "" if self.kind is Kind.SYNC else "process" if self.kind in WITH_PARALLEL_ENV else "worker"
        return noun and counted(self.workers, noun)

    @property
    def sizes(self) -> str:
        """`"64 envs"`, for each worker if there are any."""
        return counted(self.envs, "env") + (" each" if self.kind in WITH_WORKERS else "")

    @property
    def is_synchronous(self) -> bool:
        """Whether all frames of a batch come from the same, latest weights."""
        return self.kind is not Kind.MULTI_ASYNC

    @property
    def columns_of(self) -> int:
        """Frames of one column of a batch."""
        return self.envs * (self.workers if self.kind is Kind.MULTI_SYNC else 1)

    @property
    def batches_of_all(self) -> int:
        """Batches in which each worker has recorded a rollout."""
        return self.workers if self.kind is Kind.MULTI_ASYNC else 1

    def build(self, create_env_fn: Any, make_policy: Callable[[], Any], frames_per_batch: int) -> DataCollectorBase:
        """Make the collector.

        Args:
            create_env_fn: makes one env.
            make_policy: makes the policy, which no other collector uses.
            frames_per_batch: frames of a batch; rounded up to whole columns.
        """
        frames = -(-frames_per_batch // self.columns_of) * self.columns_of
        make_env = partial(self._env, create_env_fn)
        if self.kind in WITH_WORKERS:
            factory = None if make_policy() is None else make_policy  # in the worker: a program of a `.pt2` cannot be sent
            return WITH_WORKERS[self.kind]([make_env] * self.workers, policy_factory=factory, frames_per_batch=frames)
        env = make_env()
        try:
            return SyncDataCollector(env, make_policy(), frames_per_batch=frames)
        except BaseException:
            env.close()
            raise

    def _env(self, create_env_fn: Any) -> Any:
        if self.kind in WITH_PARALLEL_ENV:
            return ParallelEnv(self.envs, create_env_fn, num_processes=self.workers, overlap=self.kind is Kind.OVERLAP)
        return SerialEnv(self.envs, create_env_fn)

    def code(self, env: str, policy: str, frames_per_batch: int) -> str:
        """Lines of Python that make it.

        Args:
            env: the factory or id, as Python: `'"CartPole-v1"'`.
            policy: the policy, as Python.
            frames_per_batch: frames of a batch; rounded up to whole columns.
        """
        frames = -(-frames_per_batch // self.columns_of) * self.columns_of
        if self.kind in WITH_WORKERS:
            envs, name = "SerialEnv", self.kind.value
            made = f"[lambda: SerialEnv({self.envs}, {env})] * {self.workers}"
        elif self.kind in WITH_PARALLEL_ENV:
            envs, name = "ParallelEnv", Kind.SYNC.value
            overlap = ", overlap=True" if self.kind is Kind.OVERLAP else ""
            made = f"ParallelEnv({self.envs}, {env}, num_processes={self.workers}{overlap})"
        else:
            envs, name = "SerialEnv", Kind.SYNC.value
            made = f"SerialEnv({self.envs}, {env})"
        return TEMPLATE.format(
            imported=", ".join(sorted([envs, name])),
            torch="" if self.kind in WITH_WORKERS else "import torch\n",
            threads=f"torch.set_num_threads({self.threads})\n" if self.kind not in WITH_WORKERS else "",
            name=name,
            env=made,
            policy=policy,
            frames=frames,
        )


def candidates(cores: int, waits: bool, threads: int = 1) -> Iterator[Setup]:
    """The set-ups that are reasonable on a machine.

    Args:
        cores: number of usable cores.
        waits: whether an env spends much of a step waiting, so that more processes than cores help.
        threads: number of torch threads if the policy is in this process.
    """
    processes = sorted({2, cores, *((2 * cores, 4 * cores) if waits else ())} - {1})
    for envs in ENVS:
        yield Setup(Kind.SYNC, envs, threads=threads)
        for workers in processes:
            yield Setup(Kind.MULTI_SYNC, envs, workers)
            yield Setup(Kind.MULTI_ASYNC, envs, workers)
            if envs >= workers:
                yield Setup(Kind.PARALLEL, envs, workers, threads)
            if envs >= 2 * workers:
                yield Setup(Kind.OVERLAP, envs, workers, threads)
