"""Claim: envs in processes that write straight into the collector's memory, woken twice a column, are worth having.

Eight CartPole envs, which take a few microseconds a step, show what a column costs apart from the envs: gymnasium's
`AsyncVectorEnv` with a torch loop that records the same fields, and torchrl's `ParallelEnv` in its collector, have eight
processes; reap has two, and steps four envs in each. Envs that are busy for 200 microseconds show what is gained over
stepping them one after the other. Envs that wait for 500 microseconds, as for a simulator elsewhere, show what `overlap=True`
gains over the same `ParallelEnv` without: a policy that takes as long is at work meanwhile.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ceiling import CartPolePolicy
from gymnasium.envs.classic_control import CartPoleEnv
from pairs import Loop, Pair, alone, reap_loop
from torch import nn

from reap import GymEnv, ParallelEnv, SerialEnv

ENV = "CartPole-v1"
ENVS, PROCESSES = 8, 2
COLUMNS = 125
BUSY = 200e-6
"""Seconds that a step of a busy env takes at least."""
WAIT = 500e-6
"""Seconds for which a step of an env waits."""
WIDTH = 1024
"""Hidden units of the policy that costs something."""

ASYNC_TARGET, TORCHRL_TARGET, SERIAL_TARGET = 3.5, 25.0, 1.6


class Busy(CartPoleEnv):
    """CartPole that computes for a while in each step."""

    def step(self, action: Any) -> Any:
        until = time.perf_counter() + BUSY
        result = super().step(action)
        while time.perf_counter() < until:
            pass
        return result


def busy() -> GymEnv:
    return GymEnv(gym.wrappers.TimeLimit(Busy(), 500))


class Waiting(CartPoleEnv):
    """CartPole that waits for a while in each step."""

    def step(self, action: Any) -> Any:
        time.sleep(WAIT)
        return super().step(action)


def waiting() -> GymEnv:
    return GymEnv(gym.wrappers.TimeLimit(Waiting(), 500))


class WidePolicy(nn.Module):
    """A network that takes about as long for a few rows as the envs of this benchmark for a step."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)]
        self.net = nn.Sequential(*layers)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(self.net(observation).argmax(-1), 2)


def cart_poles() -> ParallelEnv:
    return ParallelEnv(ENVS, ENV, num_processes=PROCESSES)


@contextmanager
def async_vector(envs: int, columns: int) -> Iterator[Loop]:
    """A torch loop over gymnasium's `AsyncVectorEnv` (shared memory, same-step autoreset, no copies)."""
    autoreset = gym.vector.AutoresetMode.SAME_STEP
    venv = gym.vector.AsyncVectorEnv([partial(gym.make, ENV)] * envs, copy=False, autoreset_mode=autoreset)
    cur, ids, trajectories, policy = venv.reset(seed=0)[0], np.arange(envs), envs, CartPolePolicy()

    @torch.inference_mode()
    def rollout() -> int:
        nonlocal cur, trajectories
        shape = (envs, columns)
        tobs, tnext, tact = torch.empty(*shape, 4), torch.empty(*shape, 4), torch.empty(*shape, 2, dtype=torch.int64)
        obs, nxt, rew, tid = tobs.numpy(), tnext.numpy(), np.empty(shape, np.float32), np.empty(shape, np.int64)
        term, trunc, done = (np.zeros(shape, bool) for _ in range(3))
        for t in range(columns):
            obs[:, t], tid[:, t] = cur, ids
            action = policy(tobs[:, t])
            tact[:, t] = action
            cur, rew[:, t], ended, cut, info = venv.step(action.argmax(-1).numpy())
            nxt[:, t] = cur
            over = ended | cut
            if over.any():
                term[:, t], trunc[:, t], done[:, t] = ended, cut, over
                for b in np.flatnonzero(over):
                    nxt[b, t] = info["final_obs"][b]
                    ids[b] = trajectories
                    trajectories += 1
        return envs * columns

    yield rollout
    venv.close()


@contextmanager
def hand_written(envs: int, columns: int) -> Iterator[Loop]:
    """What a specialist writes for two processes: shared arrays, a counter to spin on, resets where the envs are."""
    context = multiprocessing.get_context("fork")

    def shared(code: str, *shape: int) -> Any:
        dtype = np.dtype(code)
        return np.frombuffer(context.RawArray("b", dtype.itemsize * int(np.prod(shape))), dtype).reshape(shape)

    begun, following, chosen = shared("f4", envs, 4), shared("f4", envs, 4), shared("i8", envs)
    rewards, ends, counts = shared("f4", envs), shared("?", 2, envs), shared("i8", 1 + PROCESSES, 16)

    def serve(process: int) -> None:
        torch.set_num_threads(1)
        own = range(process * envs // PROCESSES, (process + 1) * envs // PROCESSES)
        made = {b: gym.make(ENV) for b in own}
        for b in own:
            begun[b] = made[b].reset()[0]
        for number in count(1):
            counts[1 + process, 0] = number
            while counts[0, 0] < number:
                os.sched_yield()
            for b, action in zip(own, chosen[own.start : own.stop].tolist(), strict=True):
                following[b], rewards[b], ends[0, b], ends[1, b], _ = made[b].step(action)
                begun[b] = made[b].reset()[0] if ends[0, b] or ends[1, b] else following[b]

    processes = [context.Process(target=serve, args=(process,), daemon=True) for process in range(PROCESSES)]
    for process in processes:
        process.start()
    policy, ids, steps, trajectories = CartPolePolicy(), np.arange(envs), count(1), envs
    wait_for(counts, 1)

    @torch.inference_mode()
    def rollout() -> int:
        nonlocal trajectories
        shape = (envs, columns)
        tobs, tnext, tact = torch.empty(*shape, 4), torch.empty(*shape, 4), torch.empty(*shape, 2, dtype=torch.int64)
        obs, nxt, rew, tid = tobs.numpy(), tnext.numpy(), np.empty(shape, np.float32), np.empty(shape, np.int64)
        flags = np.zeros((3, *shape), bool)
        for t in range(columns):
            obs[:, t], tid[:, t] = begun, ids
            action = policy(tobs[:, t])
            tact[:, t] = action
            chosen[:] = action.argmax(-1).numpy()
            counts[0, 0] = number = next(steps)
            wait_for(counts, number + 1)
            nxt[:, t], rew[:, t] = following, rewards
            over = ends[0] | ends[1]
            if over.any():
                flags[:2, :, t], flags[2, :, t] = ends, over
                new = np.flatnonzero(over)
                ids[new] = range(trajectories, trajectories + len(new))
                trajectories += len(new)
        return envs * columns

    with alone(rollout, [process.pid for process in processes if process.pid]) as loop:
        yield loop
    for process in processes:
        process.kill()
        process.join()


def wait_for(counts: Any, number: int) -> None:
    """Give the core away until all processes have got so far."""
    for process in range(1, len(counts)):
        while counts[process, 0] < number:
            os.sched_yield()


@contextmanager
def torchrl_parallel(envs: int, columns: int) -> Iterator[Loop]:
    """The collector of torchrl over its `ParallelEnv`."""
    import torchrl.collectors
    from tensordict.nn import TensorDictModule
    from torchrl.envs import GymEnv as TorchRLGymEnv
    from torchrl.envs import ParallelEnv as TorchRLParallelEnv

    # `Collector` since 0.11; `SyncDataCollector` before.
    collector_class: Any = getattr(torchrl.collectors, "Collector", None) or torchrl.collectors.SyncDataCollector
    env = TorchRLParallelEnv(envs, partial(TorchRLGymEnv, ENV))
    policy = TensorDictModule(CartPolePolicy(), in_keys=["observation"], out_keys=["action"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about defaults of a later version
        collector = collector_class(env, policy, frames_per_batch=envs * columns, total_frames=-1)
    batches = iter(collector)
    yield lambda: next(batches).numel()
    collector.shutdown()


def pairs() -> Iterator[Pair]:
    frames = ENVS * COLUMNS
    ours = partial(reap_loop, cart_poles, CartPolePolicy, frames)
    yield Pair("ParallelEnv, AsyncVectorEnv", "reap", ENVS, ours, partial(async_vector, ENVS, COLUMNS), ASYNC_TARGET)
    by_hand, theirs = partial(hand_written, ENVS, COLUMNS), partial(torchrl_parallel, ENVS, COLUMNS)
    yield Pair("ParallelEnv, a hand-written one", "reap", ENVS, ours, by_hand)
    yield Pair("ParallelEnv, torchrl's", "hand-written", ENVS, by_hand, theirs, None, "torchrl")
    yield Pair("ParallelEnv, torchrl's", "reap", ENVS, ours, theirs, TORCHRL_TARGET, "torchrl")
    serial = partial(reap_loop, partial(SerialEnv, ENVS, ENV), CartPolePolicy, frames)
    yield Pair("ParallelEnv, SerialEnv", "reap", ENVS, ours, serial)
    slow = partial(reap_loop, partial(ParallelEnv, ENVS, busy, num_processes=PROCESSES), CartPolePolicy, frames)
    slow_serial = partial(reap_loop, partial(SerialEnv, ENVS, busy), CartPolePolicy, frames)
    yield Pair("ParallelEnv, SerialEnv, 200 µs", "reap", ENVS, slow, slow_serial, SERIAL_TARGET)
    halves = partial(ParallelEnv, ENVS, waiting, num_processes=ENVS)
    overlapping = partial(reap_loop, partial(halves, overlap=True), WidePolicy, frames)
    yield Pair("ParallelEnv, overlap=True", "reap", ENVS, overlapping, partial(reap_loop, halves, WidePolicy, frames))
