"""The parts of a frame's cost, each measured alone: a step, a reset, a call of the policy, a transfer to another process.

They give the rate that a set-up without other costs would reach (`Parts.bound`).
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from reap.collectors.local import SyncDataCollector
from reap.collectors.stats import CollectorStats
from reap.envs.base import EnvBase
from reap.envs.make_env import build_env
from reap.envs.serial import SerialEnv
from reap.system.machine import waited_for_core
from reap.tuning.setups import Kind, Setup

SIZES = (1, 4, 16, 64)
"""Numbers of envs for which the policy is measured; values in between are interpolated linearly."""

COPIED = 1 << 24
"""Bytes of the copy that is timed."""

WORTH = 0.8
"""More threads are used if the policy then takes less than this fraction of the time, since they take cores from the envs."""

RESET_SHARE = 0.02
"""Fraction of the time that resets are measured for."""

LEAST_SECONDS = 1e-7
"""Least duration of a step in seconds: shorter ones measure mostly the clock."""


@dataclass(frozen=True)
class Parts:
    """Seconds that the parts of a collection take.

    Attributes:
        step: of one env, resets of its episodes included, in wall-clock time.
        step_cpu: the same in CPU time, which includes the time that other programs had the core; less if an env waits for
            something.
        reset: a reset of one env.
        policy: a call of the policy, for each number of rows in `SIZES`.
        transfer: copying a frame from another process, for each frame.
        cores: number of usable cores.
        threads: number of torch threads with which the policy is fastest in this process.
    """

    step: float
    step_cpu: float
    reset: float
    policy: tuple[float, ...]
    transfer: float
    cores: int
    threads: int = 1

    def policy_of(self, rows: int) -> float:
        """Duration of a call of the policy with this number of rows, in seconds."""
        if rows >= SIZES[-1]:
            return self.policy[-1] * rows / SIZES[-1]
        last = bisect_left(SIZES, rows)
        if SIZES[last] == rows:
            return self.policy[last]
        part = (rows - SIZES[last - 1]) / (SIZES[last] - SIZES[last - 1])
        return self.policy[last - 1] + part * (self.policy[last] - self.policy[last - 1])

    def bound(self, setup: Setup) -> float:
        """Frames per second that a set-up would reach if only its parts took time."""
        envs, workers = setup.envs, setup.workers
        policy = self.policy_of(envs)
        if setup.kind is Kind.SYNC:
            return envs / (envs * self.step + policy)
        if setup.kind in (Kind.PARALLEL, Kind.OVERLAP):
            running = -(-envs // workers)
            steps = max(running * self.step, envs * self.step_cpu / min(self.cores, workers))
            if setup.kind is Kind.PARALLEL:
                return envs / (steps + policy)
            return envs / max(steps, 2 * self.policy_of(max(1, envs // 2)))
        alone = envs / (envs * self.step + policy)
        cpu = self.step_cpu + policy / envs + self.transfer
        return min(workers * alone, self.cores / cpu)


def measure(create_env_fn: Any, make_policy: Callable[[], Any], cores: int, seconds: float) -> Parts:
    """Measure the parts with a collector in this process and its statistics.

    Args:
        create_env_fn: makes an env.
        make_policy: makes a policy.
        cores: number of usable cores.
        seconds: approximate time to spend.
    """
    env = build_env(create_env_fn)
    try:
        reset = _reset(env, RESET_SHARE * seconds)
        frame = sum(field.nbytes for field in env.slot_fields().values())
    finally:
        env.close()
    share = seconds / (len(SIZES) + 1)
    with torch_threads(1):
        runs = [_run(create_env_fn, make_policy(), rows, share) for rows in SIZES]
    steps, calls, shares = zip(*runs, strict=True)
    step = statistics.median(steps)
    threads = 1
    if cores > 1:
        with torch_threads(cores):
            _, several, _ = _run(create_env_fn, make_policy(), SIZES[-1], share)
        threads = cores if several < WORTH * calls[-1] else 1
    return Parts(step, step * min(1.0, statistics.median(shares)), reset, calls, _transfer(frame), cores, threads)


def _run(create_env_fn: Any, policy: Any, rows: int, seconds: float) -> tuple[float, float, float]:
    """Seconds of a step of one env and of a call of the policy, and the fraction of the time that needed a core."""
    collector = SyncDataCollector(SerialEnv(rows, create_env_fn), policy, frames_per_batch=rows, return_same_td=True)
    try:
        collector.next()  # the first time is slower
        before, clock, cpu = collector.stats(), time.perf_counter(), _needed_core()
        lasted = 0.0
        while lasted < seconds:  # once at least, however short the time and busy the machine
            collector.next()
            lasted = time.perf_counter() - clock
        after, cpu = collector.stats(), _needed_core() - cpu
    finally:
        collector.shutdown()
    calls = after.batches - before.batches
    in_env = _total(after, after.env_share) - _total(before, before.env_share)
    in_policy = _total(after, after.policy_share) - _total(before, before.policy_share)
    step, call = in_env / calls / rows, in_policy / calls
    return max(step, LEAST_SECONDS), max(call, LEAST_SECONDS), cpu / lasted


def _reset(env: EnvBase, seconds: float) -> float:
    """Seconds of a reset of an env: the median of several, without the first, which is slower."""
    env.reset()
    began = time.perf_counter()
    ends = [began]
    while ends[-1] - began < seconds:
        env.reset()
        ends.append(time.perf_counter())
    return statistics.median(after - before for before, after in pairwise(ends))


def _needed_core() -> float:
    """Seconds for which this process had a core or was ready for one: on a busy machine, it is not the env that waits."""
    return time.process_time() + waited_for_core()


def _total(stats: CollectorStats, share: float) -> float:
    """A share of the time since the first batch was requested, in seconds."""
    return share * stats.frames / stats.frames_per_second if stats.frames_per_second else 0.0


def _transfer(nbytes: int) -> float:
    """Duration of copying a frame of this size, in seconds."""
    block = torch.zeros(COPIED, dtype=torch.uint8)
    target = torch.zeros_like(block)
    began = time.perf_counter()
    target.copy_(block)
    return (time.perf_counter() - began) * nbytes / COPIED


@contextmanager
def torch_threads(number: int) -> Generator[None]:
    """Make torch use this number of threads inside the `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
