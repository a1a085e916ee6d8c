"""Rows of gymnasium envs stepped one after the other: the array face of `GymEnv`, and of `SerialEnv` over such envs.

`GymRow` is one env without batch dimension, `GymRows` several of one kind. An observation of one array is written straight
into the row; other observations are taken apart by their leaves. Which of the two runs is chosen at construction.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from reap.envs.gymnasium.first_check import check_reset, check_step
from reap.envs.gymnasium.values import ActionLeaf, ObservationLeaf, assemble, identity
from reap.envs.row_stepper import Rows, StepRows
from reap.errors import SpecMismatch, add_note
from reap.recording.buffers import REWARD, TERMINATED, TRUNCATED, Slot, Stage, after
from reap.specs.fits import Check, Fit, LooseFit, float32_format, one_flag, one_number

Env = gym.Env[Any, Any]


@dataclass(frozen=True)
class RowFormat:
    """How one kind of env is written into rows: leaves of observations, infos and actions, and the action space."""

    observations: tuple[ObservationLeaf, ...]
    infos: tuple[ObservationLeaf, ...]
    actions: tuple[ActionLeaf, ...]
    action_space: gym.Space[Any]

    @property
    def is_array(self) -> bool:
        """Whether an observation is one array that is written as it is, and an action is one array."""
        plain_observation = len(self.observations) == 1 and self.observations[0].read is identity
        return plain_observation and not self.infos and not isinstance(self.action_space, spaces.Dict | spaces.Tuple)

    def values(self, observation: Any, info: Any) -> list[Any]:
        """The values for the row: the leaves of the observation, then those of the info."""
        return [leaf.read(observation) for leaf in self.observations] + [leaf.read(info) for leaf in self.infos]


class GymCalls:
    """The loop's calls to one env: its own `reset` and `step`, except where a call has more to do.

    The first reset and the first step are checked against the env's space, and a seed goes with the next reset. These calls
    then put the env's bare method in their place.

    Attributes:
        env: the env.
        reset: begins an episode.
        step: takes an action.
        refuses_bounds: numbers outside of the bounds of a Box are an error in the first reset and the first step.
    """

    def __init__(self, env: Env) -> None:
        self.env = env
        self.reset: Callable[[], Any] = self._first_reset
        self.step: Callable[[Any], Any] = self._first_step
        self._space = env.observation_space
        self._checked = False
        self.refuses_bounds = False
        self._seed: int | None = None

    def expect(self, space: gym.Space[Any]) -> None:
        """Check against this space, not the env's own."""
        self._space, self._checked, self.step = space, False, self._first_step
        self.seed(self._seed)

    def seed(self, seed: int | None) -> None:
        """Give the seed to the env at its next reset; None takes back one that was not used."""
        self._seed, self.reset = seed, self._first_reset

    @property
    def pending_seed(self) -> int | None:
        """The seed that the next reset will get."""
        return self._seed

    def _first_reset(self) -> Any:
        result = self.env.reset() if self._seed is None else self.env.reset(seed=self._seed)
        if not self._checked:
            check_reset(result, self._space, bounds=self.refuses_bounds)
        self._checked, self._seed, self.reset = True, None, self.env.reset
        return result

    def _first_step(self, action: Any) -> Any:
        result = self.env.step(action)
        has_numbers = check_step(result, self._space, bounds=self.refuses_bounds)
        self.step = self.env.step if has_numbers else self._flat_step
        return result if has_numbers else _flat(result)

    def _flat_step(self, action: Any) -> Any:
        return _flat(self.env.step(action))


def _flat(result: Any) -> Any:
    """The result of a step whose reward or flags are arrays of one element, with numbers in their place."""
    observation, reward, terminated, truncated, info = result
    return observation, one_number(reward), one_flag(terminated, "terminated"), one_flag(truncated, "truncated"), info


class RowArrays:
    """The arrays that rows of one format read and write, in the order of its leaves.

    Args:
        form: the format.
        stage: the policy's inputs.
        slot: where a rollout is recorded.
        lead: dimensions of a column in front of one value.
        check: how closely values are checked.
    """

    def __init__(self, form: RowFormat, stage: Stage, slot: Slot, lead: int, check: Check) -> None:
        leaves = (*form.observations, *form.infos)
        self._observations = len(form.observations)
        self.stage = [stage.arrays[leaf.key] for leaf in leaves]
        self.next = [slot.by_column(after(leaf.key)) for leaf in leaves]
        self.actions = [slot.by_column(leaf.key) for leaf in form.actions]
        self.reward = slot.by_column(after(REWARD))[..., 0]
        self.terminated = slot.by_column(after(TERMINATED))[..., 0]
        self.truncated = slot.by_column(after(TRUNCATED))[..., 0]
        kind = LooseFit if check == "first" else Fit
        self.fits = [kind(leaf.key, array.shape[lead:], array.dtype) for leaf, array in zip(leaves, self.stage, strict=True)]
        self._takes = [as_it_is if leaf.is_checked else fit.take for leaf, fit in zip(leaves, self.fits, strict=True)]

    def begin(self, index: Any, values: Sequence[Any]) -> None:
        """Write the first values of an episode to rows of the stage; see `Fit`."""
        for take, array, value in zip(self._takes, self.stage, values, strict=True):
            array[index] = take(value, "env.reset")

    def write(self, index: Any, values: Sequence[Any]) -> None:
        """Write the results of a step; see `Fit`."""
        for take, array, value in zip(self._takes, self.next, values, strict=True):
            array[index] = take(value)

    def rows_of(self, values: Sequence[Any], count: int, where: str) -> list[Any]:
        """The values of some rows of a vector env, `[count, *value]` for each leaf, as they can be assigned; see `Fit`."""
        some = [type(fit)(fit.key, (count, *fit.shape[1:]), fit.dtype).take for fit in self.fits]
        # An info that is absent has zeros for all rows.
        given = [*values[: self._observations], *(value[:count] for value in values[self._observations :])]
        return [
            np.asarray(value) if take is as_it_is else fit(value, where)
            for take, fit, value in zip(self._takes, some, given, strict=True)
        ]


def as_it_is(value: Any, where: str = "") -> Any:  # noqa: ARG001  replaces `Fit.take`
    """The value."""
    return value


NO_NUMBER = (struct.error, TypeError, OverflowError, DeprecationWarning)
"""Errors of `struct` for values that the format cannot hold, and of numpy for an array instead of a number."""


class GymRow:
    """One gymnasium env; its arrays have no row dimension.

    Attributes:
        check: how closely values are checked, from the next `bind` on.
    """

    def __init__(self, calls: GymCalls, form: RowFormat) -> None:
        self.calls = calls
        self.form = form
        self.check: Check = "types"
        self.step_rows: StepRows = self._step_array if form.is_array else self._step_tree
        self._pending: tuple[Rows | None, int] = (None, 0)
        self._decode = form.actions[0].one

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Take the arrays that following calls read and write."""
        arrays = self._arrays = RowArrays(self.form, stage, slot, 0, self.check)
        self._next, self._actions, fit = arrays.next[0], arrays.actions[0], arrays.fits[0]
        self._dtype, self._shape, self._take = fit.dtype, fit.shape, fit.take
        self._reward, self._terminated, self._truncated = arrays.reward, arrays.terminated, arrays.truncated
        self._rewards = arrays.reward.data.cast("B")

    def seed(self, seeds: Sequence[int]) -> None:
        """Give the env its seed at its next reset."""
        self.calls.seed(seeds[0])

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Begin a new episode."""
        observation, info = self.calls.reset()
        self._arrays.begin(..., self.form.values(observation, info))

    def _step_array(self, rows: Rows | None, t: int) -> Rows | None:
        try:
            observation, reward, terminated, truncated, _ = self.calls.step(self._decode(self._actions[t]))
            if type(observation) is ndarray and observation.dtype is self._dtype and observation.shape == self._shape:
                self._next[t] = observation
            else:
                self._next[t] = self._take(observation)
            try:
                pack_reward(self._rewards, 4 * t, reward)
            except NO_NUMBER:
                self._reward[t] = one_number(reward)
            return None if terminated is False and truncated is False else self._end(t, terminated, truncated)
        except SpecMismatch as error:
            raise error.at(f"column {t}") from error.__cause__

    def _step_tree(self, rows: Rows | None, t: int) -> Rows | None:
        form, arrays = self.form, self._arrays
        try:
            parts = [leaf.one(array[t]) for leaf, array in zip(form.actions, arrays.actions, strict=True)]
            observation, reward, terminated, truncated, info = self.calls.step(assemble(form.action_space, parts))
            arrays.write((t, ...), form.values(observation, info))
            try:
                pack_reward(self._rewards, 4 * t, reward)
            except NO_NUMBER:
                self._reward[t] = one_number(reward)
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
        """Store the arguments for `receive`, in which this env steps."""
        self._pending = (rows, t)

    def receive(self) -> Rows | None:
        """Step with the arguments of `send`."""
        return self.step_rows(*self._pending)


def name_env(error: Exception, number: int, total: int) -> None:
    """Say in an error which env of a batch raised it."""
    place = f"env {number} of {total}"
    add_note(error, f"reap: in {place}")
    if isinstance(error, SpecMismatch):
        error.at(place)


FIRST_ROW: Rows = (0,)
ndarray = np.ndarray
pack_reward = float32_format(1).pack_into


class GymRows:
    """Several gymnasium envs of one format, each one row.

    Args:
        rows: the envs.
        first: the number of the first of them in messages.
        total: how many there are in all, in messages; None if these are all.
    """

    def __init__(self, rows: Sequence[GymRow], first: int = 0, total: int | None = None) -> None:
        self.calls = self._calls = [row.calls for row in rows]
        self.check: Check = rows[0].check
        self._form = form = rows[0].form
        self._every_row = range(len(rows))
        self._rewards: list[Any] = [0.0] * len(rows)
        self._packed = np.zeros(len(rows), np.float32)
        self._pack = partial(float32_format(len(rows)).pack_into, self._packed.data.cast("B"), 0)
        self._decode = form.actions[0].many
        self.step_rows: StepRows = self._step_arrays if form.is_array else self._step_trees
        self._reset_row = self._reset_array if form.is_array else self._reset_tree
        self._pending: tuple[Rows | None, int] = (None, 0)
        self._first, self._total = first, len(rows) if total is None else total

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Take the arrays that following calls read and write."""
        arrays = self._arrays = RowArrays(self._form, stage, slot, 1, self.check)
        self._next, self._actions, fit = arrays.next[0], arrays.actions[0], arrays.fits[0]
        self._dtype, self._shape, self._take = fit.dtype, fit.shape, fit.take
        self._reward, self._terminated, self._truncated = arrays.reward, arrays.terminated, arrays.truncated

    def seed(self, seeds: Sequence[int]) -> None:
        """Give each env its seed at its next reset."""
        for calls, seed in zip(self._calls, seeds, strict=True):
            calls.seed(seed)

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Begin a new episode in these rows, or in all."""
        b = 0
        try:
            for b in self._every_row if rows is None else rows:
                self._reset_row(b)
        except Exception as error:
            self._name_env(error, b, t)
            raise

    def _reset_array(self, b: int) -> None:
        observation, _ = self._calls[b].reset()
        self._arrays.begin((b, ...), [observation])

    def _reset_tree(self, b: int) -> None:
        observation, info = self._calls[b].reset()
        self._arrays.begin((b, ...), self._form.values(observation, info))

    def _step_arrays(self, rows: Rows | None, t: int) -> Rows | None:
        actions, row, rewards, calls = self._read(t), self._next[t], self._rewards, self._calls
        dtype, shape = self._dtype, self._shape
        ended: list[int] = []
        b = 0
        try:
            for b in self._every_row if rows is None else rows:
                observation, rewards[b], terminated, truncated, _ = calls[b].step(actions[b])
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
                observation, rewards[b], terminated, truncated, info = self._calls[b].step(action)
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

    def _write_rewards(self, t: int) -> None:
        rewards, b = self._rewards, 0
        try:
            self._pack(*rewards)
        except NO_NUMBER:
            try:
                for b, reward in enumerate(rewards):
                    rewards[b] = one_number(reward)
            except SpecMismatch as error:
                self._name_env(error, b, t)
                raise
            self._pack(*rewards)
        self._reward[t] = self._packed

    def _name_env(self, error: Exception, b: int, t: int) -> None:
        if isinstance(error, SpecMismatch) and t >= 0:
            error.at(f"column {t}")
        name_env(error, self._first + b, self._total)

    def send(self, rows: Rows | None, t: int) -> None:
        """Store the arguments for `receive`, in which these envs step."""
        self._pending = (rows, t)

    def receive(self) -> Rows | None:
        """Step with the arguments of `send`."""
        return self.step_rows(*self._pending)
