"""Rows of gymnasium envs stepped one after the other: the array face of `GymEnv`, and of `SerialEnv` over such envs.

`GymRow` is one env without batch dimension, `GymRows` several of one kind. An observation of one array is written straight
into the row; other observations are taken apart by their leaves. Which of the two runs is chosen at construction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from reap.buffers import REWARD, TERMINATED, TRUNCATED, Slot, Stage, after
from reap.envs.base import Rows, StepRows
from reap.envs.check import check_observation
from reap.envs.values import ActionLeaf, ObservationLeaf, assemble, identity

Env = gym.Env[Any, Any]


@dataclass(frozen=True)
class RowFormat:
    """How one kind of env is written into rows: leaves of observations, infos and actions, and the action space."""

    observations: tuple[ObservationLeaf, ...]
    infos: tuple[ObservationLeaf, ...]
    actions: tuple[ActionLeaf, ...]
    action_space: gym.Space[Any]
    observation_space: gym.Space[Any]

    @property
    def is_array(self) -> bool:
        """Whether an observation is one array that is written as it is, and an action is one array."""
        plain_observation = len(self.observations) == 1 and self.observations[0].read is identity
        return plain_observation and not self.infos and len(self.actions) == 1


class FirstStep:
    """Checks the first step of an env, and puts the env's own `step` in its place for all that follow."""

    def __init__(self, env: Env, form: RowFormat, replace: Callable[[Any], None]) -> None:
        self._env, self._form, self._replace = env, form, replace

    def __call__(self, action: Any) -> Any:
        result = self._env.step(action)
        check_observation(result[0], self._form.observation_space, "env.step")
        self._replace(self._env.step)
        return result


class GymRow:
    """One gymnasium env; its arrays have no row dimension."""

    def __init__(self, env: Env, form: RowFormat) -> None:
        self.env = env
        self.form = form
        self._seed: int | None = None
        self._unchecked = True
        self._step: Callable[[Any], Any] = FirstStep(env, form, self._set_step)
        self.step_rows: StepRows = self._step_array if form.is_array else self._step_tree
        self._pending: tuple[Rows | None, int] = (None, 0)

    def _set_step(self, step: Any) -> None:
        self._step = step

    def seed(self, seed: int) -> None:
        """Give the seed to the env at its next reset."""
        self._seed = seed

    def take_seed(self) -> int | None:
        """The seed that waits for the next reset, which is no longer this row's."""
        seed, self._seed = self._seed, None
        return seed

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Take the arrays that following calls read and write."""
        form = self.form
        self._stage = [stage.arrays[leaf.key] for leaf in form.observations]
        self._stage_info = [stage.arrays[leaf.key] for leaf in form.infos]
        self._next = [slot.by_column(after(leaf.key)) for leaf in form.observations]
        self._next_info = [slot.by_column(after(leaf.key)) for leaf in form.infos]
        self._actions = [slot.by_column(leaf.key) for leaf in form.actions]
        self._reward = slot.by_column(after(REWARD))[..., 0]
        self._terminated = slot.by_column(after(TERMINATED))[..., 0]
        self._truncated = slot.by_column(after(TRUNCATED))[..., 0]
        self._next_array, self._action_array, self._decode = self._next[0], self._actions[0], form.actions[0].one

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Begin a new episode."""
        observation, info = self.env.reset() if self._seed is None else self.env.reset(seed=self._seed)
        self._seed = None
        if self._unchecked:
            check_observation(observation, self.form.observation_space, "env.reset")
            self._unchecked = False
        for leaf, array in zip(self.form.observations, self._stage, strict=True):
            array[...] = leaf.read(observation)
        for leaf, array in zip(self.form.infos, self._stage_info, strict=True):
            array[...] = leaf.read(info)

    def _step_array(self, rows: Rows | None, t: int) -> Rows | None:
        observation, self._reward[t], terminated, truncated, _ = self._step(self._decode(self._action_array[t]))
        self._next_array[t] = observation
        if terminated or truncated:
            self._terminated[t], self._truncated[t] = terminated, truncated
            return FIRST_ROW
        return None

    def _step_tree(self, rows: Rows | None, t: int) -> Rows | None:
        form = self.form
        values = [leaf.one(array[t]) for leaf, array in zip(form.actions, self._actions, strict=True)]
        observation, self._reward[t], terminated, truncated, info = self._step(assemble(form.action_space, values))
        for leaf, array in zip(form.observations, self._next, strict=True):
            array[t] = leaf.read(observation)
        for leaf, array in zip(form.infos, self._next_info, strict=True):
            array[t] = leaf.read(info)
        if terminated or truncated:
            self._terminated[t], self._truncated[t] = terminated, truncated
            return FIRST_ROW
        return None

    def send(self, rows: Rows | None, t: int) -> None:
        """Keep what is to be stepped: this env works while `receive` waits for it."""
        self._pending = (rows, t)

    def receive(self) -> Rows | None:
        """Step what `send` kept."""
        return self.step_rows(*self._pending)


FIRST_ROW: Rows = (0,)


class GymRows:
    """Several gymnasium envs of one kind, each one row."""

    def __init__(self, rows: Sequence[GymRow]) -> None:
        self._singles = list(rows)
        self.envs = [row.env for row in rows]
        self._form = form = rows[0].form
        self._seeds: list[int | None] = [row.take_seed() for row in rows]
        self._unchecked = set(range(len(self.envs)))
        self._steps: list[Callable[[Any], Any]] = []
        for b, env in enumerate(self.envs):
            self._steps.append(FirstStep(env, form, lambda step, b=b: self._set_step(b, step)))
        self._every_row = range(len(self.envs))
        self._rewards: list[Any] = [0.0] * len(self.envs)
        self.step_rows: StepRows = self._step_arrays if form.is_array else self._step_trees
        self._pending: tuple[Rows | None, int] = (None, 0)

    def _set_step(self, b: int, step: Any) -> None:
        self._steps[b] = step

    def take_seeds(self) -> None:
        """Take the seeds that the single rows were given."""
        self._seeds = [row.take_seed() for row in self._singles]

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Take the arrays that following calls read and write."""
        form = self._form
        self._stage = [stage.arrays[leaf.key] for leaf in form.observations]
        self._stage_info = [stage.arrays[leaf.key] for leaf in form.infos]
        self._next = [slot.by_column(after(leaf.key)) for leaf in form.observations]
        self._next_info = [slot.by_column(after(leaf.key)) for leaf in form.infos]
        self._actions = [slot.by_column(leaf.key) for leaf in form.actions]
        self._reward = slot.by_column(after(REWARD))[..., 0]
        self._terminated = slot.by_column(after(TERMINATED))[..., 0]
        self._truncated = slot.by_column(after(TRUNCATED))[..., 0]
        self._next_array, self._action_array, self._decode = self._next[0], self._actions[0], form.actions[0].many

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Begin a new episode in these rows, or in all."""
        form = self._form
        for b in self._every_row if rows is None else rows:
            observation, info = self._reset_env(b)
            for leaf, array in zip(form.observations, self._stage, strict=True):
                array[b] = leaf.read(observation)
            for leaf, array in zip(form.infos, self._stage_info, strict=True):
                array[b] = leaf.read(info)

    def _reset_env(self, b: int) -> tuple[Any, Any]:
        seed, env = self._seeds[b], self.envs[b]
        try:
            observation, info = env.reset() if seed is None else env.reset(seed=seed)
            if b in self._unchecked:
                check_observation(observation, self._form.observation_space, "env.reset")
                self._unchecked.discard(b)
        except Exception as error:
            error.add_note(f"in env {b} of {len(self.envs)}")
            raise
        self._seeds[b] = None
        return observation, info

    def _step_arrays(self, rows: Rows | None, t: int) -> Rows | None:
        actions, row = self._decode(self._action_array[t]), self._next_array[t]
        steps, rewards, b = self._steps, self._rewards, 0
        ended: list[int] | None = None
        try:
            for b in self._every_row if rows is None else rows:
                row[b], rewards[b], terminated, truncated, _ = steps[b](actions[b])
                if terminated or truncated:
                    self._terminated[t, b], self._truncated[t, b] = terminated, truncated
                    ended = [b] if ended is None else [*ended, b]
        except Exception as error:
            error.add_note(f"in env {b} of {len(self.envs)}")
            raise
        self._reward[t] = rewards
        return ended

    def _step_trees(self, rows: Rows | None, t: int) -> Rows | None:
        form, rewards, b = self._form, self._rewards, 0
        columns = [leaf.many(array[t]) for leaf, array in zip(form.actions, self._actions, strict=True)]
        nexts = [(leaf.read, array[t]) for leaf, array in zip(form.observations, self._next, strict=True)]
        infos = [(leaf.read, array[t]) for leaf, array in zip(form.infos, self._next_info, strict=True)]
        ended: list[int] = []
        try:
            for b in self._every_row if rows is None else rows:
                action = assemble(form.action_space, [column[b] for column in columns])
                observation, rewards[b], terminated, truncated, info = self._steps[b](action)
                for read, row in nexts:
                    row[b] = read(observation)
                for read, row in infos:
                    row[b] = read(info)
                if terminated or truncated:
                    self._terminated[t, b], self._truncated[t, b] = terminated, truncated
                    ended.append(b)
        except Exception as error:
            error.add_note(f"in env {b} of {len(self.envs)}")
            raise
        self._reward[t] = rewards
        return ended or None

    def send(self, rows: Rows | None, t: int) -> None:
        """Keep what is to be stepped: these envs work while `receive` waits for them."""
        self._pending = (rows, t)

    def receive(self) -> Rows | None:
        """Step what `send` kept."""
        return self.step_rows(*self._pending)


