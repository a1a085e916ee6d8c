"""A plain model of slices: envs whose frames say where they come from, and which frames follow each other."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.episodes.index import EpisodeIndex
from reap.errors import CallOrderError

Frame = tuple[int, ...]
"""Env, episode, step."""


class Env:
    """Frames of one env that know where they come from: `observation` is (env, episode, step)."""

    def __init__(self, number: int, seed: int, ids: Iterator[int] | None = None, longest: int = 9) -> None:
        self.number, self.episode, self.step = number, 0, 0
        self.random = random.Random(1_000 * seed + number)
        self.ids = ids
        self.longest = longest
        self._begin()

    def _begin(self) -> None:
        self.length = self.random.randint(1, self.longest)
        self.id = next(self.ids) if self.ids is not None else 1_000 * self.number + self.episode

    def frames(self, count: int) -> TensorDict:
        """The next frames, `[count]`."""
        rows: list[tuple[int, ...]] = []
        for _ in range(count):
            done = self.step + 1 == self.length
            terminated = done and self.random.random() < 0.5
            rows.append((self.number, self.episode, self.step, self.id, done, terminated))
            self.step += 1
            if done:
                self.episode, self.step = self.episode + 1, 0
                self._begin()
        table = torch.tensor(rows)
        now, then = table[:, :3], table[:, :3] + torch.tensor([0, 0, 1])
        done, terminated = table[:, 4:5].bool(), table[:, 5:6].bool()
        flags = {"done": done, "terminated": terminated, "truncated": done & ~terminated}
        return TensorDict(
            {"observation": now, "next": {"observation": then, **flags}, "collector": {"traj_ids": table[:, 3]}}, [count]
        )


def stacked(envs: list[Env], count: int) -> Any:
    """`[envs, count]`."""
    return torch.stack([env.frames(count) for env in envs])


def kept(data: TensorDict, marks: str) -> TensorDict:
    """With ids, done flags, or both."""
    return {"ids": data.exclude(("next", "done")), "ends": data.exclude("collector"), "both": data}[marks]


def frames_of(data: Any) -> list[Frame]:
    """Where frames come from."""
    return [tuple(map(int, frame)) for frame in data["observation"].reshape(-1, 3).tolist()]


def slices_within(frames: list[Frame], length: int) -> set[tuple[Frame, ...]]:
    """All runs of so many frames that followed each other and are all there."""
    there = set(frames)
    runs = {tuple((env, episode, step + k) for k in range(length)) for env, episode, step in there}
    return {run for run in runs if all(frame in there for frame in run)}


def long_enough(sampler: Any, index: EpisodeIndex, length: int) -> list[int]:
    """The trajectories that a sampler takes slices of this length from."""
    try:
        return sampler.eligible(index, length).numbers.tolist()
    except CallOrderError:
        return []


def slices_indexed(buffer: ReplayBuffer, length: int) -> Counter[tuple[Frame, ...]]:
    """All slices that the sampler can give, read from what it knows of trajectories."""
    index: EpisodeIndex = buffer.sampler.updated(buffer.storage)  # pyright: ignore[reportAttributeAccessIssue]
    found: Counter[tuple[Frame, ...]] = Counter()
    for number in long_enough(buffer.sampler, index, length):
        for start in range(int(index.table.first[number]), int(index.table.end[number]) - length + 1):
            places = index.table.places(np.array([number]), np.array([start]), length)
            observed = buffer.storage.leaf(("observation",))[torch.from_numpy(places[0])]
            found[tuple(frames_of({"observation": observed}))] += 1
    return found


def check(buffer: ReplayBuffer, length: int) -> None:
    """Each slice that there is can be drawn once, and none else."""
    expected = slices_within(frames_of(buffer[:]), length)
    assert slices_indexed(buffer, length) == Counter(expected)
