"""Rows of gymnasium envs stepped one after the other: the array face of `GymEnv`, and of `SerialEnv` over such envs.

`GymRow` is one env without batch dimension, `GymRows` several of one kind. An observation of one array is written straight
into the row; others are split into leaves. The choice between the two is made at construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from reap.envs.gymnasium.calls import GymCalls
from reap.envs.gymnasium.first_check import no_reset, no_step, reset_values, step_values
from reap.envs.gymnasium.row_arrays import RowArrays, RowFormat
from reap.envs.gymnasium.values import assemble
from reap.envs.row_stepper import Rows, StepRows
from reap.errors import SpecMismatch, add_note
from reap.recording.buffers import Slot, Stage
from reap.specs.fits import PLAIN_NUMBERS, TOO_LARGE, Check, float32_format, one_flag, one_number, too_large


class GymRow:
    """One gymnasium env; its arrays have no row dimension.

    Attributes:
        check: how closely values are checked; takes effect at the next `bind`.
    """

    def __init__(self, calls: GymCalls, form: RowFormat) -> None:
        self.calls = calls
        self.form = form
        self.check: Check = "types"
        self.step_rows: StepRows = self._step_array if form.is_array else self._step_tree
        self._take_reward = calls.take_reward = form.take_reward()
        self._pending: tuple[Rows | None, int] = (None, 0)
        self._decode = form.actions[0].one

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays that later calls read and write."""
        arrays = self._arrays = RowArrays(self.form, stage, slot, 0, self.check)
        self._next, self._actions, fit = arrays.next[0], arrays.actions[0], arrays.fits[0]
        self._dtype, self._shape, self._take = fit.dtype, fit.shape, fit.take
        self._reward, self._terminated, self._truncated = arrays.reward, arrays.terminated, arrays.truncated
        self._rewards = (arrays.reward if self.form.has_one_reward else NO_ARRAY).data.cast("B")

    def seed(self, seeds: Sequence[int]) -> None:
        """Set the env's seed for its next reset."""
        self.calls.seed(seeds[0])

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Start a new episode."""
        observation, info = reset_values(self.calls.reset())
        self._arrays.begin(..., self.form.values(observation, info, "env.reset"))

    def _step_array(self, rows: Rows | None, t: int) -> Rows | None:
        try:
            result = self.calls.step(self._decode(self._actions[t]))
            try:
                observation, reward, terminated, truncated, _ = result
            except (TypeError, ValueError):
                raise no_step(result) from None
            if type(observation) is ndarray and observation.dtype is self._dtype and observation.shape == self._shape:
                self._next[t] = observation
            else:
                self._next[t] = self._take(observation)
            try:
                pack_reward(self._rewards, 4 * t, reward if type(reward) in PLAIN_NUMBERS else one_number(reward))
            except TOO_LARGE:
                raise too_large(reward) from None
            return None if terminated is False and truncated is False else self._end(t, terminated, truncated)
        except SpecMismatch as error:
            raise error.at(f"column {t}") from error.__cause__

    def _step_tree(self, rows: Rows | None, t: int) -> Rows | None:
        form, arrays = self.form, self._arrays
        try:
            parts = [leaf.one(array[t]) for leaf, array in zip(form.actions, arrays.actions, strict=True)]
            result = self.calls.step(assemble(form.action_space, parts))
            observation, reward, terminated, truncated, info = step_values(result)
            arrays.write((t, ...), form.values(observation, info))
            self._reward[t] = self._take_reward(reward)
            return self._end(t, terminated, truncated)
        except SpecMismatch as error:
            raise error.at(f"column {t}") from error.__cause__

    def _end(self, t: int, terminated: Any, truncated: Any) -> Rows | None:
        terminated, truncated = one_flag(terminated, "terminated"), one_flag(truncated, "truncated")
        if not (terminated or truncated):
            return None
        self._terminated[t], self._truncated[t] = terminated, truncated
        return FIRST_ROW

    def send(self, rows: Rows | None, t: int) -> None:
        """Store the arguments for `receive`, which steps the env."""
        self._pending = (rows, t)

    def receive(self) -> Rows | None:
        """Step with the arguments of `send`."""
        return self.step_rows(*self._pending)


def name_env(error: Exception, number: int, total: int) -> None:
    """Add to an error the env of the batch that raised it."""
    place = f"env {number} of {total}"
    add_note(error, f"reap: in {place}")
    if isinstance(error, SpecMismatch):
        error.at(place)


FIRST_ROW: Rows = (0,)
ndarray = np.ndarray
NO_ARRAY = np.zeros(0, np.float32)
pack_reward = float32_format(1).pack_into
are_numbers = PLAIN_NUMBERS.issuperset


class GymRows:
    """Several gymnasium envs of one format, each of which is one row.

    Args:
        rows: the envs.
        first: the number of the first env, for messages.
        total: the total number of envs, for messages; None if these are all.
    """

    def __init__(self, rows: Sequence[GymRow], first: int = 0, total: int | None = None) -> None:
        self.calls = self._calls = [row.calls for row in rows]
        self.check: Check = rows[0].check
        self._form = form = rows[0].form
        self._every_row = range(len(rows))
        self._take_reward = form.take_reward()
        self._write_rewards = self._pack_rewards if form.has_one_reward else self._copy_rewards
        self._rewards: list[Any] = [0.0 if form.has_one_reward else np.zeros(form.reward_shape, np.float32)] * len(rows)
        self._packed = np.zeros(len(rows), np.float32)
        self._pack = partial(float32_format(len(rows)).pack_into, self._packed.data.cast("B"), 0)
        self._decode = form.actions[0].many
        self.step_rows: StepRows = self._step_arrays if form.is_array else self._step_trees
        self._reset_row = self._reset_array if form.is_array else self._reset_tree
        self._pending: tuple[Rows | None, int] = (None, 0)
        self._first, self._total = first, len(rows) if total is None else total

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays that later calls read and write."""
        arrays = self._arrays = RowArrays(self._form, stage, slot, 1, self.check)
        self._next, self._actions, fit = arrays.next[0], arrays.actions[0], arrays.fits[0]
        self._dtype, self._shape, self._take = fit.dtype, fit.shape, fit.take
        self._reward, self._terminated, self._truncated = arrays.reward, arrays.terminated, arrays.truncated

    def seed(self, seeds: Sequence[int]) -> None:
        """Set each env's seed for its next reset."""
        for calls, seed in zip(self._calls, seeds, strict=True):
            calls.seed(seed)

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Start a new episode in these rows, or in all."""
        b = 0
        try:
            for b in self._every_row if rows is None else rows:
                self._reset_row(b)
        except Exception as error:
            self._name_env(error, b, t)
            raise

    def _reset_array(self, b: int) -> None:
        result = self._calls[b].reset()
        try:
            observation, _ = result
        except (TypeError, ValueError):
            raise no_reset(result) from None
        self._arrays.begin((b, ...), [observation])

    def _reset_tree(self, b: int) -> None:
        observation, info = reset_values(self._calls[b].reset())
        self._arrays.begin((b, ...), self._form.values(observation, info, "env.reset"))

    def _step_arrays(self, rows: Rows | None, t: int) -> Rows | None:
        actions, row, rewards, calls = self._read(t), self._next[t], self._rewards, self._calls
        dtype, shape = self._dtype, self._shape
        ended: list[int] = []
        b = 0
        try:
            for b in self._every_row if rows is None else rows:
                result = calls[b].step(actions[b])
                try:
                    observation, rewards[b], terminated, truncated, _ = result
                except (TypeError, ValueError):
                    raise no_step(result) from None
                if type(observation) is ndarray and observation.dtype is dtype and observation.shape == shape:
                    row[b] = observation
                else:
                    row[b] = self._take(observation)
                if terminated is not False or truncated is not False:
                    if type(terminated) is not bool or type(truncated) is not bool:
                        self._end(t, b, terminated, truncated, ended)
                        continue
                    self._terminated[t, b], self._truncated[t, b] = terminated, truncated
                    ended.append(b)
        except Exception as error:
            self._name_env(error, b, t)
            raise
        self._write_rewards(t)
        return ended or None

    def _read(self, t: int) -> Sequence[Any]:
        try:
            return self._decode(self._actions[t])
        except SpecMismatch as error:
            raise error.at(f"column {t}") from None

    def _step_trees(self, rows: Rows | None, t: int) -> Rows | None:
        form, rewards, b = self._form, self._rewards, 0
        arrays, ended = self._arrays, list[int]()
        try:
            parts = [leaf.many(array[t]) for leaf, array in zip(form.actions, arrays.actions, strict=True)]
        except SpecMismatch as error:
            raise error.at(f"column {t}") from None
        try:
            for b in self._every_row if rows is None else rows:
                action = assemble(form.action_space, [part[b] for part in parts])
                observation, rewards[b], terminated, truncated, info = step_values(self._calls[b].step(action))
                arrays.write((t, b, ...), form.values(observation, info))
                if terminated is not False or truncated is not False:
                    self._end(t, b, terminated, truncated, ended)
        except Exception as error:
            self._name_env(error, b, t)
            raise
        self._write_rewards(t)
        return ended or None

    def _end(self, t: int, b: int, terminated: Any, truncated: Any, ended: list[int]) -> None:
        terminated, truncated = one_flag(terminated, "terminated"), one_flag(truncated, "truncated")
        if terminated or truncated:
            self._terminated[t, b], self._truncated[t, b] = terminated, truncated
            ended.append(b)

    def _copy_rewards(self, t: int) -> None:
        self._convert_rewards(t)
        self._reward[t] = self._rewards

    def _pack_rewards(self, t: int) -> None:
        if not are_numbers(map(type, self._rewards)):
            self._convert_rewards(t)
        try:
            self._pack(*self._rewards)
        except TOO_LARGE:
            self._convert_rewards(t)
        self._reward[t] = self._packed

    def _convert_rewards(self, t: int) -> None:
        rewards, b = self._rewards, 0
        try:
            for b, reward in enumerate(rewards):
                rewards[b] = self._take_reward(reward)
        except SpecMismatch as error:
            self._name_env(error, b, t)
            raise

    def _name_env(self, error: Exception, b: int, t: int) -> None:
        if isinstance(error, SpecMismatch) and t >= 0:
            error.at(f"column {t}")
        name_env(error, self._first + b, self._total)

    def send(self, rows: Rows | None, t: int) -> None:
        """Store the arguments for `receive`, which steps the envs."""
        self._pending = (rows, t)

    def receive(self) -> Rows | None:
        """Step with the arguments of `send`."""
        return self.step_rows(*self._pending)
