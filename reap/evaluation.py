"""`evaluate`: how well a policy does, by whole episodes.

The number of episodes of each env is fixed before the first step. Stopping at the first `n` that end would favour short
episodes: with two envs whose episodes have 1 and 1000 frames, nearly all would come from the first env.

    env 0   | 0 | 3 | - - -        episodes=5 of three envs, numbered in the order of the result;
    env 1   |    1     |  4 |      frames after an env's last episode are stepped and not counted
    env 2   |  2 | - - - - - -
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from tensordict.nn import InteractionType
from torch import nn

from reap.collectors.local import SyncDataCollector
from reap.envs.make_env import build_env, is_env
from reap.errors import OptionError, SpecMismatch
from reap.keys import plain
from reap.policy.contents.held import Held, held_by
from reap.recording.buffers import DONE, MASK, REWARD, after
from reap.recording.trajectories import TrajectoryTracker
from reap.specs.fits import Check

__all__ = ["EpisodeLog", "Evaluation", "evaluate"]

COLUMNS = 32
"""Steps of a rollout: enough to make its fixed cost small, and few enough that little is stepped in vain at the end."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Whole episodes of one policy. `print` shows mean, spread and number.

    Attributes:
        returns: sums of rewards, float64 `[episodes]`: the first episode of each env, then the second of each, and so on.
        lengths: frames, int64 `[episodes]`, in the same order.

    Example:
        >>> result = Evaluation(np.array([200.0, 180.0]), np.array([200, 180]))
        >>> result.mean, result.std
        (190.0, 10.0)
        >>> print(result)
        return 190.0 ± 10.0 (180.0 to 200.0), length 190.0, 2 episodes
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns (of these episodes: divided by their number)."""
        return float(self.returns.std())

    def __str__(self) -> str:
        least, most, number = self.returns.min(), self.returns.max(), len(self.returns)
        spread = f"{self.mean:.1f} ± {self.std:.1f} ({least:.1f} to {most:.1f})"
        return f"return {spread}, length {self.lengths.mean():.1f}, {number:,} episode{'' if number == 1 else 's'}"


def evaluate(
    env: Any,
    policy: Callable[..., Any] | None = None,
    episodes: int = 10,
    exploration_type: Any = InteractionType.DETERMINISTIC,
    *,
    seed: int | None = None,
    max_frames_per_traj: int | None = None,
    check: Check = "types",
) -> Evaluation:
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

    Returns:
        Returns and lengths.

    Raises:
        OptionError: `episodes` is not positive, or a collector does not accept the env or the policy.
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
    built = build_env(env)
    rows = max(1, built.batch_size.numel())
    quota = Quota(rows, int(number))
    try:
        held = held_by(policy)
        with _unchanged(held):
            collector = SyncDataCollector(
                built,
                policy,
                frames_per_batch=rows * COLUMNS,
                exploration_type=exploration_type,
                max_frames_per_traj=max_frames_per_traj,
                check=check,
                policy_device=_device_of(held),
                return_same_td=True,
                interruptor=quota,
            )
            workers: Any = collector._workers  # pyright: ignore[reportPrivateUsage]
            quota.tracker = workers.assembly.recorder.rollout.tracker
            if seed is not None:
                collector.set_seed(seed)
            # Nothing to shut down: the collector holds only the env, which is closed below or stays open.
            return _first_episodes(collector, quota)
    finally:
        if not is_env(env):
            built.close()


class Quota:
    """Ends a rollout with the column after the one in which the last episode that counts has ended.

    Args:
        rows: number of rows.
        episodes: how many episodes count: the first ones of each row.

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
        """A rollout starts: none of its episodes has ended."""
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


class Ended(NamedTuple):
    """A finished episode: its row, the column of its last frame, the sum of its rewards, its length in frames."""

    row: int
    column: int
    reward: float
    length: int


class EpisodeLog:
    """Adds up the episodes in successive batches `[*P, T]`.

    Args:
        rows: number of rows, the product of `P`.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._reward = np.zeros(rows, np.float64)
        self._length = np.zeros(rows, np.int64)

    def add(self, batch: TensorDictBase) -> list[Ended]:
        """The episodes that end in this batch, by column.

        Raises:
            SpecMismatch: there is not exactly one reward and one done flag per frame.
        """
        reward, done = self._frames(batch, REWARD, np.float64), self._frames(batch, DONE, np.bool_)
        mask = batch.get(plain(MASK), None)
        valid = np.ones_like(done) if mask is None else mask.reshape(done.shape).numpy()
        ended: list[Ended] = []
        for b in range(self._rows):
            start = 0
            for column in np.flatnonzero(done[b] & valid[b]).tolist():
                self._count(b, reward[b, start : column + 1], valid[b, start : column + 1])
                ended.append(Ended(b, column, float(self._reward[b]), int(self._length[b])))
                self._reward[b] = self._length[b] = 0
                start = column + 1
            self._count(b, reward[b, start:], valid[b, start:])
        return sorted(ended, key=lambda episode: episode.column)

    def _count(self, b: int, reward: NDArray[np.float64], valid: NDArray[np.bool_]) -> None:
        self._reward[b] += reward[valid].sum()
        self._length[b] += np.count_nonzero(valid)

    def _frames(self, batch: TensorDictBase, key: tuple[str, ...], dtype: Any) -> NDArray[Any]:
        value = batch.get(plain(after(key)), None)
        if value is None or value.numel() != batch.numel():
            found = "none" if value is None else list(value.shape)
            raise SpecMismatch(f"episodes: expected one {key[-1]} per frame, {[*batch.shape, 1]}, found {found}")
        return value.reshape(self._rows, batch.shape[-1]).cpu().numpy().astype(dtype)


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
