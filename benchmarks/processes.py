"""Claim: two worker processes collect as much as two collectors that know nothing of each other.

The reference are two processes, each with a `SyncDataCollector` of its own, that collect four batches of 2,000 frames and say
so; nothing passes between them and the training process but that word. What it makes of two cores is measured too ("one
collector" against it): where the reference itself is below 1.8 times one collector, the machine has no two cores to give,
and the claim is void.

torchrl's collectors deliver batches of the same size; both are timed without training. The workers of each stand still in the
turns of the other: asynchronous ones would go on collecting there. What can be had at all is measured against them as well: the
loop that a specialist writes, in two processes that know nothing of each other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from ceiling import CartPolePolicy, hand_loop
from pairs import Loop, OpenLoop, Pair, alone, plain_loop, reap_loop

from reap import GymEnv, MultiaSyncDataCollector, MultiSyncDataCollector, SerialEnv
from reap.workers.processes.group import ProcessGroup

ENV = "CartPole-v1"
WORKERS = 2
FRAMES = 2_000
"""Frames of a worker's rollout."""

BATCHES = 4
"""Batches that an independent collector collects before it says so."""

TARGET, TORCHRL = 0.95, {1: 6.0, 8: 12.0}


def make_env(envs: int) -> GymEnv | SerialEnv:
    return GymEnv(ENV) if envs == 1 else SerialEnv(envs, ENV)


def collector_loop(envs: int) -> AbstractContextManager[Loop]:
    return reap_loop(partial(make_env, envs), CartPolePolicy, FRAMES)


def hand_written_loop(envs: int) -> AbstractContextManager[Loop]:
    return plain_loop(hand_loop, envs, FRAMES // envs, CartPolePolicy())


class Independent:
    """A loop in a process of its own; each command has it collect some batches."""

    def __init__(self, open_loop: OpenLoop) -> None:
        torch.set_num_threads(1)
        self._opened = ExitStack()
        self._collect = self._opened.enter_context(open_loop())

    def handle(self, batches: int) -> int:
        return sum(self._collect() for _ in range(batches))

    def close(self) -> None:
        self._opened.close()


def make_independent(open_loop: OpenLoop, *_: object) -> Independent:
    return Independent(open_loop)


@contextmanager
def independent(open_loop: OpenLoop, processes: int = WORKERS) -> Iterator[Loop]:
    """Loops that know nothing of each other, one in each process."""
    group = ProcessGroup([partial(make_independent, open_loop)] * processes)

    def collect() -> int:
        for worker in range(processes):
            group.request(worker, BATCHES)
        return sum(group.ready(range(processes))[1] for _ in range(processes))

    with alone(collect, group.pids) as loop:
        yield loop
    group.stop()


@contextmanager
def multi(kind: Any, envs: int) -> Iterator[Loop]:
    """A collector of reap with two workers."""
    frames = FRAMES * WORKERS if kind is MultiSyncDataCollector else FRAMES
    collector = kind([partial(make_env, envs)] * WORKERS, CartPolePolicy(), frames_per_batch=frames)
    with collector, alone(lambda: collector.next().numel(), collector._workers.group.pids) as loop:
        yield loop


@contextmanager
def torchrl_multi(name: str, envs: int) -> Iterator[Loop]:
    """Torchrl's collector of the same kind."""
    import torchrl.collectors
    from tensordict.nn import TensorDictModule

    # Named so since 0.11; `MultiSyncDataCollector` and `MultiaSyncDataCollector` before.
    old = {"MultiSyncCollector": "MultiSyncDataCollector", "MultiAsyncCollector": "MultiaSyncDataCollector"}[name]
    kind: Any = getattr(torchrl.collectors, name, None) or getattr(torchrl.collectors, old)
    policy = TensorDictModule(CartPolePolicy(), in_keys=["observation"], out_keys=["action"])
    frames = FRAMES * WORKERS if name == "MultiSyncCollector" else FRAMES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collector = kind([partial(make_torchrl, envs)] * WORKERS, policy, frames_per_batch=frames, total_frames=-1)
    batches = iter(collector)
    with alone(lambda: next(batches).numel(), [process.pid for process in collector.procs]) as loop:
        yield loop
    collector.shutdown()


def make_torchrl(envs: int) -> Any:
    from torchrl.envs import GymEnv as TheirEnv
    from torchrl.envs import SerialEnv as TheirSerialEnv

    return TheirEnv(ENV) if envs == 1 else TheirSerialEnv(envs, partial(TheirEnv, ENV))


KINDS = (
    ("MultiSync", MultiSyncDataCollector, "MultiSyncCollector"),
    ("MultiaSync", MultiaSyncDataCollector, "MultiAsyncCollector"),
)


def pairs() -> Iterator[Pair]:
    for envs in (1, 8):
        one = partial(collector_loop, envs)
        baseline, by_hand = partial(independent, one), partial(independent, partial(hand_written_loop, envs))
        yield Pair("two independent collectors", "one collector", envs, partial(independent, one, 1), baseline)
        for name, kind, theirs in KINDS:
            yield Pair(f"two independent collectors, {name}", "reap", envs, partial(multi, kind, envs), baseline, TARGET)
            against = partial(torchrl_multi, theirs, envs)
            yield Pair(f"torchrl, {name}", "reap", envs, partial(multi, kind, envs), against, TORCHRL[envs], needs="torchrl")
            yield Pair(f"torchrl, {name}", "hand-written", envs, by_hand, against, needs="torchrl")
