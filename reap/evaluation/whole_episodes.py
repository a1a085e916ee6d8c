"""`evaluate`: measures a policy by whole episodes.

The number of episodes of each env is fixed before the first step. Stopping at the first `n` that end would favour short
episodes: with two envs whose episodes have 1 and 1000 frames, nearly all would come from the first env.

    env 0   | 0 | 3 | - - -        episodes=5 of three envs, numbered in the order of the result;
    env 1   |    1     |  4 |      frames after an env's last episode are stepped and not counted
    env 2   |  2 | - - - - - -
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, overload

import numpy as np
import torch
from tensordict.nn import InteractionType
from torch import nn

from reap.collectors.local import SyncDataCollector
from reap.envs.base import EnvBase
from reap.envs.make_env import build_env, is_env
from reap.errors import OptionError
from reap.evaluation.episodes import Ended, EpisodeLog, Evaluation
from reap.evaluation.evaluator import Evaluator
from reap.option_values import switch
from reap.policy.contents.held import Held, held_by
from reap.recording.trajectories import TrajectoryTracker
from reap.specs.fits import Check

COLUMNS = 32
"""Number of steps in a rollout: large enough to make fixed costs small, small enough to waste few steps at the end."""


@overload
def evaluate(
    env: Any,
    policy: Callable[..., Any] | None = None,
    episodes: int = 10,
    exploration_type: Any = InteractionType.DETERMINISTIC,
    *,
    seed: int | None = None,
    max_frames_per_traj: int | None = None,
    check: Check = "types",
    start: Literal[False] = False,
) -> Evaluation: ...


@overload
def evaluate(
    env: Any,
    policy: Callable[..., Any] | None = None,
    episodes: int = 10,
    exploration_type: Any = InteractionType.DETERMINISTIC,
    *,
    seed: int | None = None,
    max_frames_per_traj: int | None = None,
    check: Check = "types",
    start: Literal[True],
) -> Evaluator: ...


def evaluate(
    env: Any,
    policy: Callable[..., Any] | None = None,
    episodes: int = 10,
    exploration_type: Any = InteractionType.DETERMINISTIC,
    *,
    seed: int | None = None,
    max_frames_per_traj: int | None = None,
    check: Check = "types",
    start: bool = False,
) -> Evaluation | Evaluator:
    """Run a policy for a number of whole episodes.

    Each of several envs contributes the same number of episodes (the first envs one more if the number does not divide), so
    the result is not biased towards short episodes. Every episode starts with a reset.

    Modules act in evaluation mode, including those that a function holds. Their mode and buffers (batch statistics) are
    restored afterwards, and so is torch's global generator. An env that you pass stays open. A collector that shares it starts
    new episodes with its next batch.

    Args:
        env: an env or vector env, a factory of one, or a gymnasium id, as for a collector.
        policy: module or function; None for random actions.
        episodes: number of episodes.
        exploration_type: how probabilistic policies choose.
        seed: seeds envs and generators, so that the result can be repeated; it stays set in an env that you pass. None: envs
            keep their generators, and policies draw the next numbers of torch's generator.
        max_frames_per_traj: frames after which an episode is truncated. Needed for envs that never end.
        check: how closely values are checked; see `CollectorOptions`.
        start: return an `Evaluator`, which does this on request, in a separate process during training.

    Returns:
        Returns and lengths; with `start`, an `Evaluator`.

    Raises:
        OptionError: `episodes` is not positive, `start` not a bool, or a collector does not accept the env or the policy.
        SpecMismatch: a policy that does not fit the env, or an env without one reward per frame.

    Example:
        >>> print(evaluate("CartPole-v1", episodes=3, seed=0))
        return ... ± ... (... to ...), length ..., 3 episodes
        >>> evaluate("CartPole-v1", lambda observation: torch.tensor([1, 0]), episodes=4, max_frames_per_traj=5).mean
        5.0
    """
    number: Any = episodes
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
        raise OptionError(f"episodes: expected a positive number of episodes, got {number!r}")
    run = partial(
        _evaluated,
        episodes=int(number),
        seed=seed,
        exploration_type=exploration_type,
        max_frames_per_traj=max_frames_per_traj,
        check=check,
    )
    if switch(start, "start"):
        return Evaluator(env, policy, run)
    built = build_env(env)
    try:
        return run(built, policy)
    finally:
        if not is_env(env):
            built.close()


def _evaluated(env: EnvBase, policy: Any, episodes: int, seed: int | None, **options: Any) -> Evaluation:
    rows = max(1, env.batch_size.numel())
    quota = Quota(rows, episodes)
    held = held_by(policy)
    with _unchanged(held):
        collector = SyncDataCollector(
            env,
            policy,
            frames_per_batch=rows * COLUMNS,
            policy_device=_device_of(held),
            return_same_td=True,
            interruptor=quota,
            **options,
        )
        workers: Any = collector._workers  # pyright: ignore[reportPrivateUsage]
        quota.tracker = workers.assembly.recorder.rollout.tracker
        if seed is not None:
            collector.set_seed(seed)
        # Nothing to shut down: the collector holds only the env, which its owner closes.
        return _first_episodes(collector, quota)


class Quota:
    """Ends a rollout one column after the last episode that counts has ended.

    Args:
        rows: number of rows.
        episodes: number of episodes that count: the first ones of each row.

    Attributes:
        tracker: tells which episodes have ended.
    """

    tracker: TrajectoryTracker

    def __init__(self, rows: int, episodes: int) -> None:
        self.rows, self.episodes = rows, episodes
        self._missing = [(episodes - b - 1) // rows + 1 for b in range(rows)]
        self._left = rows - self._missing.count(0)
        self._seen = 0

    @property
    def is_met(self) -> bool:
        """Whether all episodes have ended."""
        return not self._left

    def begin(self) -> None:
        """Start a rollout, in which no episode has ended yet."""
        self._seen = 0

    def collection_stopped(self) -> bool:
        """Whether the rollout should end; called once a column, before it is known which episodes end with it."""
        if self.tracker.ended > self._seen:
            self.look()
        return not self._left

    def look(self) -> None:
        """Count the episodes that have ended since the last call in this rollout."""
        for b in self.tracker.rows_ended(self._seen):
            self._missing[b] -= 1
            self._left -= self._missing[b] == 0
        self._seen = self.tracker.ended


def _first_episodes(collector: SyncDataCollector, quota: Quota) -> Evaluation:
    rows, log = quota.rows, EpisodeLog(quota.rows)
    found: list[list[Ended]] = [[] for _ in range(rows)]
    while not quota.is_met:
        quota.begin()
        for episode in log.add(collector.rollout()):
            found[episode.row].append(episode)
        quota.look()
    chosen = [found[number % rows][number // rows] for number in range(quota.episodes)]
    return Evaluation(
        np.array([episode.reward for episode in chosen], np.float64),
        np.array([episode.length for episode in chosen], np.int64),
    )


# The state that evaluation restores


@contextmanager
def _unchanged(held: Held) -> Generator[None]:
    """Restore torch's generators, and the mode and buffers of a policy's modules, at the end."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    modules = list(held.modules().values())
    modes = [(module, module.training) for module in modules]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
        if not nn.parameter.is_lazy(buffer)
    ]
    for module in modules:  # not module.eval(), which exported programs do not allow
        module.training = False
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                buffer.copy_(before)
                setattr(module, name, buffer)


def _device_of(held: Held) -> torch.device | None:
    """The device of a policy's weights, if it is not the envs' device."""
    first = next(iter(held.tensors().values()), None)
    return None if first is None or first.device.type == "cpu" else first.device
