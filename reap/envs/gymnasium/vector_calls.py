"""The loop's calls to a vector env: reset, reset of some rows, step; checked at first use, seeded at the next reset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.utils import batch_space

from reap.envs.gymnasium.first_check import RESET_VALUES, STEP_VALUES, check_observation, check_values
from reap.envs.gymnasium.processes.deaths import naming_deaths
from reap.envs.gymnasium.vector_kinds import VectorKind, count_rows, is_envpool, single_spaces
from reap.envs.row_stepper import Rows
from reap.errors import OptionError

Result = tuple[Any, Any, Any, Any, Any]


class ResetOptions(dict[str, Any]):
    """Options of a reset whose mask cannot be popped.

    `SyncVectorEnv` pops the mask from its options; a `RecordEpisodeStatistics` around it reads the mask afterwards, and
    without it drops the episodes of all rows.
    """

    def pop(self, key: str, *default: Any) -> Any:
        """Return the value without removing it."""
        return self[key] if key in self else super().pop(key, *default)

    def __reduce__(self) -> tuple[Any, ...]:
        # The workers of an AsyncVectorEnv get the options that were to be left out.
        return dict, ({name: value for name, value in self.items() if name != "reset_mask"},)


class VectorCalls:
    """The loop's calls to a vector env.

    The first reset and the first step are checked against the env's spaces; then the bare methods replace the checks.

    Attributes:
        env: the env.
        kind: its abilities.
        count: its number of rows.
        step: steps all rows with a batch of actions.
        send: sends a batch of actions for `receive`.
        receive: returns the results of a step for the actions that were sent.
        refuses_bounds: numbers outside the bounds of a Box are an error in the first reset and the first step.
    """

    def __init__(self, env: Any, kind: VectorKind) -> None:
        self.env, self.kind, self.count = env, kind, count_rows(env)
        self._reset, self._step = naming_deaths(env.reset, env, "reset"), naming_deaths(env.step, env, "step")
        self.step: Callable[[Any], Result] = self._first_step
        self.send: Callable[[Any], Any] = self._keep
        self.receive: Callable[[], Result] = self._step_kept
        self._actions: Any = None
        self._seeds: Sequence[int | None] | None = None
        self._has_reset = False
        self.refuses_bounds = False

    # ------------------------------------------------------------------ seeds and resets

    def seed(self, seeds: Sequence[int]) -> None:
        """Set each row's seed for the next reset.

        Raises:
            OptionError: EnvPool, which accepts seeds only at construction.
        """
        if self.kind.returns_chosen:
            raise OptionError("EnvPool takes its seeds only when it is made: envpool.make(..., seed=seed)")
        self._seeds = list(seeds)

    @property
    def has_seeds(self) -> bool:
        """Whether seeds wait for the next reset."""
        return self._seeds is not None

    def reset(self) -> tuple[Any, Any]:
        """Reset all rows."""
        seeds, self._seeds = self._seeds, None
        if seeds is None:
            result = self._reset()
        else:
            result = self._reset(seed=seeds if self.kind.seeds_rows else seeds[0])
        if not self._has_reset:
            self._check(result, "env.reset", RESET_VALUES)
            self._has_reset = True
        return result

    def reset_some(self, rows: Any) -> tuple[Any, Any, Any]:
        """Reset some rows and no others.

        Args:
            rows: the rows' indices, an int array.

        Returns:
            The rows, their places in the values, and the result of the reset.

        Raises:
            OptionError: the env does not support this.
        """
        if not self.kind.takes_mask:
            raise OptionError(
                f"{self.env} can only reset all of its rows at once, not {rows.tolist()}: it is not known "
                "to honour a reset mask"
            )
        if self.kind.takes_ids:
            return rows, slice(len(rows)), self._reset(rows.astype(np.int32))
        mask = np.zeros(self.count, bool)
        mask[rows] = True
        options = ResetOptions(reset_mask=mask)
        result = self._reset(options=options) if self._seeds is None else self._reset(seed=self._take(mask), options=options)
        return rows, slice(len(rows)) if self.kind.returns_chosen else rows, result

    def _take(self, mask: Any) -> list[int | None]:
        assert self._seeds is not None, "seeds are waiting"
        taken = [seed if chosen else None for seed, chosen in zip(self._seeds, mask, strict=True)]
        self._seeds = [None if chosen else seed for seed, chosen in zip(self._seeds, mask, strict=True)]
        return taken

    # ------------------------------------------------------------------ steps

    def step_some(self, rows: Rows, actions: Any) -> Result:
        """Step some rows of an EnvPool, with their actions; the others wait."""
        return self._step(actions, np.asarray(rows, np.int32))

    def _first_step(self, actions: Any) -> Result:
        result = self._step(actions)
        self._check(result, "env.step", STEP_VALUES)
        self.step = self._step
        if is_envpool(self.env):
            self.send, self.receive = self.env.send, self.env.recv
        elif type(self.env) is AsyncVectorEnv:
            self.send, self.receive = (
                naming_deaths(one, self.env, "step") for one in (self.env.step_async, self.env.step_wait)
            )
        return result

    def _keep(self, actions: Any) -> None:
        self._actions = actions

    def _step_kept(self) -> Result:
        actions, self._actions = self._actions, None
        return self.step(actions)

    # ------------------------------------------------------------------ checks

    def _check(self, result: Any, where: str, expected: str) -> None:
        check_values(result, where, expected)
        space, _ = single_spaces(self.env)
        batched: gym.Space[Any] = batch_space(space, self.count)
        check_observation(result[0], batched, where, bounds=self.refuses_bounds)
