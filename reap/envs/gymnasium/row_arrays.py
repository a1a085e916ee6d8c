"""`RowFormat`: the format of one kind of env's values; `RowArrays`: the arrays that its rows read and write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from reap.envs.gymnasium.first_check import check_containers
from reap.envs.gymnasium.values import ActionLeaf, ObservationLeaf, Read, containers, identity
from reap.recording.buffers import REWARD, TERMINATED, TRUNCATED, Slot, Stage, after
from reap.specs.fits import Check, Fit, LooseFit, one_number

ONE_REWARD = (1,)


@dataclass(frozen=True)
class RowFormat:
    """The format in which one kind of env is written into rows: leaves of observations, infos and actions, and the reward."""

    observations: tuple[ObservationLeaf, ...]
    infos: tuple[ObservationLeaf, ...]
    actions: tuple[ActionLeaf, ...]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    reward_shape: tuple[int, ...] = ONE_REWARD

    @cached_property
    def _size(self) -> int:
        """The number of entries of an observation that is a dict or a tuple; -1 for any other observation."""
        return next((size for _, size in containers(self.observation_space)), -1)

    @cached_property
    def _inner(self) -> Sequence[tuple[Read, int]]:
        """A function that reads each dict and tuple inside it, with the number of its entries."""
        return containers(self.observation_space)[1:]

    @property
    def is_array(self) -> bool:
        """Whether an observation is one array that needs no conversion, an action is one array, and a reward is one number."""
        plain_observation = len(self.observations) == 1 and self.observations[0].read is identity
        is_plain = plain_observation and not self.infos and self.has_one_reward
        return is_plain and not isinstance(self.action_space, spaces.Dict | spaces.Tuple)

    @property
    def has_one_reward(self) -> bool:
        """Whether a reward is one number."""
        return self.reward_shape == ONE_REWARD

    def take_reward(self) -> Callable[[Any], Any]:
        """A function that checks a reward and returns it in writable form."""
        return one_number if self.has_one_reward else Fit(REWARD, self.reward_shape, np.dtype(np.float32)).take

    def values(self, observation: Any, info: Any, where: str = "env.step") -> list[Any]:
        """The values for a row: the leaves of the observation, then those of the info.

        Raises:
            SpecMismatch: an observation has other parts than its space.
        """
        try:
            # Leaves miss entries that are absent, not those too many; to count in their readers costs a call for each step.
            has_parts = self._size < 0 or len(observation) == self._size
            for read, size in self._inner:
                has_parts = has_parts and len(read(observation)) == size
            if not has_parts:
                check_containers(observation, self.observation_space, where)
            found = [leaf.read(observation) for leaf in self.observations]
        except (LookupError, TypeError, AttributeError):
            check_containers(observation, self.observation_space, where)
            raise
        return found + [leaf.read(info) for leaf in self.infos]


class RowArrays:
    """The arrays that rows of one format read and write, in the order of its leaves.

    Args:
        form: the format.
        stage: the policy's inputs.
        slot: where a rollout is recorded.
        lead: number of dimensions of a column before a value's own.
        check: how closely values are checked.
    """

    def __init__(self, form: RowFormat, stage: Stage, slot: Slot, lead: int, check: Check) -> None:
        leaves = (*form.observations, *form.infos)
        self._observations = len(form.observations)
        self.stage = [stage.arrays[leaf.key] for leaf in leaves]
        self.next = [slot.by_column(after(leaf.key)) for leaf in leaves]
        self.actions = [slot.by_column(leaf.key) for leaf in form.actions]
        reward = slot.by_column(after(REWARD))
        self.reward = reward[..., 0] if form.has_one_reward else reward
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
        """The values of some rows of a vector env, `[count, *value]` for each leaf, in assignable form; see `Fit`."""
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
