"""What a collector over `Id` envs must deliver, computed frame by frame in plain Python from the contract.

A `Model` is asked for one batch after the other; it answers with rows of `Frame`s, None where nothing valid is recorded.
`batch_from` turns them into the values of every key of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from reap.testing import Id

FLAGS = ("done", "terminated", "truncated")


@dataclass(frozen=True)
class Frame:
    """One step of an episode."""

    env: int
    episode: int
    step: int
    id: int
    terminated: bool
    truncated: bool

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


Frames = list[list[Frame | None]]


@dataclass
class Row:
    """Where one env is: the episode begun last, its steps so far, and whether it is over."""

    env: int
    episode: int
    step: int = 0
    id: int | None = None
    over: bool = False

    def begin(self) -> None:
        self.episode += 1
        self.step, self.id, self.over = 0, None, False


class Stopper:
    """An interruptor that stops at every `period`-th question; the model asks one of its own."""

    def __init__(self, period: int) -> None:
        self.period, self.asked = period, 0

    def collection_stopped(self) -> bool:
        self.asked += 1
        return self.asked % self.period == 0


class Model:
    """The frames of a collector.

    Args:
        rows: number of envs.
        columns: columns of a batch.
        episode: number of the episode that the first frames are of.
        limit: `max_frames_per_traj`.
        fresh: `reset_at_each_iter`.
        reset_when_done: the option of that name.
        stopper: an interruptor.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        episode: int = 0,
        *,
        limit: int | None = None,
        fresh: bool = False,
        reset_when_done: bool = True,
        stopper: Stopper | None = None,
    ) -> None:
        self.rows = [Row(env, episode) for env in range(rows)]
        self.columns, self.limit, self.fresh = columns, limit, fresh
        self.reset_when_done, self.stopper = reset_when_done, stopper
        self.next_id = 0

    def batch(self) -> Frames:
        """The frames of the next batch."""
        self._begin_batch()
        frames: Frames = [[None] * self.columns for _ in self.rows]
        for t in range(self.columns):
            for row in self.rows:
                if not row.over:
                    frames[row.env][t] = self._step(row)
            stopped = self.stopper is not None and self.stopper.collection_stopped()
            all_over = all(row.over for row in self.rows)
            if stopped or (all_over and not self.reset_when_done):
                break
            if self.reset_when_done and t + 1 < self.columns:
                self._begin(row for row in self.rows if row.over)
        return frames

    def _begin_batch(self) -> None:
        if self.fresh:
            self._begin(row for row in self.rows if row.step)
        elif self.reset_when_done or all(row.over for row in self.rows):
            self._begin(row for row in self.rows if row.over)

    def _begin(self, rows: Iterator[Row]) -> None:
        for row in rows:
            row.begin()

    def _step(self, row: Row) -> Frame:
        if row.id is None:
            row.id, self.next_id = self.next_id, self.next_id + 1
        before, row.step = row.step, row.step + 1
        terminated = truncated = False
        if row.step >= Id.length(row.env, row.episode):
            terminated, truncated = Id.ending(row.env, row.episode)
        truncated = truncated or row.step == self.limit
        row.over = terminated or truncated
        return Frame(row.env, row.episode, before, row.id, terminated, truncated)


def observation(frame: Frame, later: int = 0) -> list[float]:
    return [float(frame.env), float(frame.episode), float(frame.step + later)]


def filled(frames: Frames, value, zero, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """`value` of each frame, `zero` where there is none, reshaped to `shape` and the value's own dimensions."""
    rows = [[zero if frame is None else value(frame) for frame in row] for row in frames]
    tensor = torch.tensor(rows, dtype=dtype)
    return tensor.view(*shape, *tensor.shape[2:])


def batch_from(frames: Frames, shape: tuple[int, ...], actions: torch.Tensor, *, random: bool) -> dict:
    """The value of every key, without the optional ones.

    Args:
        frames: rows of frames.
        shape: the batch size.
        actions: the actions of the batch `[*shape, 1]`, which the rewards contain.
        random: they were drawn, and the policy's other outputs are zero; otherwise they are the policy's.
    """

    def numbers(value, size: int = 1):
        return filled(frames, value, [0.0] * size, shape, torch.float32)

    def flag(value):
        return filled(frames, value, [False], shape, torch.bool)

    acted = iter(actions.reshape(-1).tolist())
    drawn = [[next(acted) for _ in row] for row in frames]
    action_of = {id(f): a for row, values in zip(frames, drawn, strict=True) for f, a in zip(row, values, strict=True)}
    total = numbers(lambda f: [sum(observation(f))])
    never = flag(lambda f: [False])
    return {
        "observation": numbers(observation, 3),
        "action": actions if random else total,
        "log_prob": -total[..., 0] * (not random),
        ("info", "count"): (total * 2 * (not random)).to(torch.int64),
        **dict.fromkeys(FLAGS, never),
        ("collector", "traj_ids"): filled(frames, lambda f: f.id, -1, shape, torch.int64),
        ("next", "observation"): numbers(lambda f: observation(f, 1), 3),
        ("next", "reward"): numbers(lambda f: [Id.reward(f.env, f.episode, f.step + 1, action_of[id(f)])]),
        **{("next", name): flag(lambda f, name=name: [getattr(f, name)]) for name in FLAGS},
    }


def mask_from(frames: Frames, shape: tuple[int, ...]) -> torch.Tensor:
    return filled(frames, lambda f: True, False, shape, torch.bool)


def counts_from(frames: Frames, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """`step_count` at the root and under `"next"`."""
    root = filled(frames, lambda f: [f.step], [0], shape, torch.int64)
    return root, filled(frames, lambda f: [f.step + 1], [0], shape, torch.int64)


def last_frames(frames: Frames, shape: tuple[int, ...]) -> torch.Tensor:
    """True at the last valid frame of each row `[*shape, 1]`."""
    valid = [[frame is not None for frame in row] for row in frames]
    last = [[[ok and not any(row[t + 1 :])] for t, ok in enumerate(row)] for row in valid]
    return torch.tensor(last).view(*shape, 1)
