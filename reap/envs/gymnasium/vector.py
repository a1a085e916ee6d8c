"""Rows of a vector env, stepped together: the array face of `GymEnv` over one.

Observations, rewards and flags are written for all rows at once, by one copy per key. The method for resetting rows that ended
is chosen at construction (`vector_kinds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reap.envs.gymnasium.first_check import reset_values, step_values
from reap.envs.gymnasium.row_arrays import RowArrays, RowFormat
from reap.envs.gymnasium.values import assemble
from reap.envs.gymnasium.vector_calls import VectorCalls
from reap.envs.gymnasium.vector_kinds import Mode
from reap.envs.row_stepper import Rows, StepRows
from reap.errors import SpecMismatch, located
from reap.recording.buffers import REWARD, Slot, Stage
from reap.recording.layout import Array
from reap.specs.fits import Check, Fit, describe, flags_of_rows

TRUE = b"\x01"
"""The byte of a set flag; searching for it in the bytes of a column takes a tenth of the time of `any`."""

BOOL = np.dtype(bool)


def rewards_of_rows(value: Any, fit: Fit) -> Array:
    """The rewards of a step, one number for each row, `[E]` or `[E, 1]`.

    Raises:
        SpecMismatch: they are anything else.
    """
    given = value[:, 0] if type(value) is np.ndarray and value.shape == (*fit.shape, 1) else value
    try:
        return fit.take(given)
    except SpecMismatch:
        raise SpecMismatch(
            f"env.step: reward: expected one number for each of {fit.shape[0]} rows, found {describe(value)}"
        ) from None


class VectorRows:
    """The rows of a vector env.

    Args:
        calls: the env.
        form: the format of all rows at once.
        single: the format of one row, for final observations.
    """

    def __init__(self, calls: VectorCalls, form: RowFormat, single: RowFormat) -> None:
        self.calls = calls
        self._form, self._single = form, single
        self._every_row = range(calls.count)
        self._decode = form.actions[0].many
        self._step_all = self._step_array if form.is_array else self._step_tree
        self._same_step = calls.kind.mode is Mode.SAME_STEP
        self.step_rows: StepRows = self._step_all
        if self._same_step:
            self.step_rows = self._step_and_forget
        elif calls.kind.takes_ids:
            self.step_rows = self._step_chosen
        # Same-step mode: rows that were reset with the last step, and where their first observations are.
        self._fresh_rows: list[int] = []
        self._fresh: tuple[Any, Any] = (None, None)
        self._t = 0
        self.check: Check = "types"
        """How closely values are checked; takes effect at the next `bind`."""
        self._flag_shape = (calls.count,)
        self._rewards = Fit(REWARD, (calls.count,), np.dtype(np.float32))

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays that later calls read and write."""
        arrays = self._arrays = RowArrays(self._form, stage, slot, 0, self.check)
        self._next, self._actions, self._take = arrays.next[0], arrays.actions[0], arrays.fits[0].take
        self._reward, self._terminated, self._truncated = arrays.reward, arrays.terminated, arrays.truncated

    # ------------------------------------------------------------------ resets

    def seed(self, seeds: Sequence[int]) -> None:
        """Set each row's seed for the next reset."""
        self.calls.seed(seeds)

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Start a new episode in these rows, or in all.

        Raises:
            OptionError: only some rows, but the env can only reset all.
        """
        calls = self.calls
        fresh = self._take_fresh(rows) if self._fresh_rows else None
        if fresh:
            self._write_first(*self._fresh, fresh, fresh)
            done = set(fresh)
            rows = [b for b in (self._every_row if rows is None else rows) if b not in done]
            if not rows:
                return
        chosen, where, result = (..., ..., calls.reset()) if rows is None else calls.reset_some(np.asarray(rows))
        self._write_first(*reset_values(result), chosen, where)

    def _take_fresh(self, rows: Rows | None) -> list[int]:
        """The rows that already are at the start of an episode."""
        fresh, self._fresh_rows = self._fresh_rows, []
        if rows is None:
            suffices = self.calls.kind.takes_mask or len(fresh) == self.calls.count
            return fresh if suffices and not self.calls.has_seeds else []
        chosen = set(rows)
        self._fresh_rows = [b for b in fresh if b not in chosen]
        return [b for b in fresh if b in chosen]

    def _write_first(self, observation: Any, info: Any, rows: Any, where: Any) -> None:
        """Write first observations to rows of the stage; `where` gives their places in the values."""
        values = self._form.values(observation, info, "env.reset")
        count = len(rows) if isinstance(where, slice) else self.calls.count
        for array, taken in zip(self._arrays.stage, self._arrays.rows_of(values, count, "env.reset"), strict=True):
            array[rows] = taken[where]

    # ------------------------------------------------------------------ steps

    def _step_array(self, rows: Rows | None, t: int) -> Rows | None:
        """The hot path, for observations of one array and all rows."""
        try:
            result = self.calls.step(self._decode(self._actions[t]))
            observation, reward, terminated, truncated, info = step_values(result)
            self._next[t], self._reward[t] = self._take(observation), self._rewards_of(reward)
            terminated, truncated = self._flags_of(terminated, "terminated"), self._flags_of(truncated, "truncated")
        except SpecMismatch as error:
            raise error.at(f"column {t}") from error.__cause__
        if TRUE in terminated.tobytes() or TRUE in truncated.tobytes():
            return self._end(t, observation, terminated, truncated, info)
        return None

    def _step_tree(self, rows: Rows | None, t: int) -> Rows | None:
        return self._write(self.calls.step(self._read_actions(t)), t)

    def _step_chosen(self, rows: Rows | None, t: int) -> Rows | None:
        """Step all rows of an EnvPool, or only some."""
        if rows is None:
            return self._step_all(None, t)
        count = len(rows)
        with located(f"column {t}"):
            actions = assemble(self._form.action_space, [leaf.many(a[t][rows]) for leaf, a in self._action_arrays()])
            observation, reward, *flags, info = self.calls.step_some(rows, actions)
            values = self._arrays.rows_of(self._form.values(observation, info), count, "env.step")
            for array, taken in zip(self._arrays.next, values, strict=True):
                array[t, rows] = taken
            self._reward[t, rows] = rewards_of_rows(reward, Fit(REWARD, (count,), self._rewards.dtype))
            names = ("terminated", "truncated")
            terminated, truncated = (flags_of_rows(value, count, name) for value, name in zip(flags, names, strict=True))
        self._terminated[t, rows], self._truncated[t, rows] = terminated, truncated
        ended = (terminated | truncated).nonzero()[0].tolist()
        return [rows[i] for i in ended] or None

    def _flags_of(self, value: Any, name: str) -> Array:
        """One bool for each row."""
        if type(value) is np.ndarray and value.dtype is BOOL and value.shape == self._flag_shape:
            return value
        return flags_of_rows(value, self.calls.count, name)

    def _rewards_of(self, value: Any) -> Array:
        """One number for each row."""
        return rewards_of_rows(value, self._rewards)

    def _step_and_forget(self, rows: Rows | None, t: int) -> Rows | None:
        """Drop the first observations that came with the last step, which this step invalidates."""
        self._fresh_rows = []
        return self._step_all(None, t)

    def send(self, rows: Rows | None, t: int) -> None:
        """Send the actions of column `t` to all rows."""
        self._t, self._fresh_rows = t, []
        self.calls.send(self._read_actions(t))

    def receive(self) -> Rows | None:
        """Write the results of the rows; return those whose episode ended."""
        return self._write(self.calls.receive(), self._t)

    def _read_actions(self, t: int) -> Any:
        with located(f"column {t}"):
            return assemble(self._form.action_space, [leaf.many(array[t]) for leaf, array in self._action_arrays()])

    def _action_arrays(self) -> Any:
        return zip(self._form.actions, self._arrays.actions, strict=True)

    def _write(self, result: Any, t: int) -> Rows | None:
        with located(f"column {t}"):
            observation, reward, terminated, truncated, info = step_values(result)
            self._arrays.write(t, self._form.values(observation, info))
            self._reward[t] = self._rewards_of(reward)
            terminated, truncated = self._flags_of(terminated, "terminated"), self._flags_of(truncated, "truncated")
        if TRUE in terminated.tobytes() or TRUE in truncated.tobytes():
            return self._end(t, observation, terminated, truncated, info)
        return None

    def _end(self, t: int, observation: Any, terminated: Array, truncated: Array, info: Any) -> Rows:
        self._terminated[t], self._truncated[t] = terminated, truncated
        ended: list[int] = (terminated | truncated).nonzero()[0].tolist()
        if self._same_step:
            self._fresh_rows, self._fresh = ended, (observation, info)
            self._write_final(ended, t, info)
        return ended

    def _write_final(self, ended: list[int], t: int, info: Any) -> None:
        """Replace the first observations and infos of reset rows by the last ones of the previous episodes."""
        final = info.get("final_obs")
        if final is None:
            raise SpecMismatch(
                f"{self.calls.env}: rows {ended} ended in same-step mode, and info has no 'final_obs', only {sorted(info)}; "
                "see gymnasium.vector.AutoresetMode"
            )
        with located(f"column {t}"):
            values = self._arrays.rows_of(self._final_values(ended, final, info), len(ended), "env.step: final_obs")
        for array, taken in zip(self._arrays.next, values, strict=True):
            array[t, ended] = taken

    def _final_values(self, ended: list[int], final: Any, info: Any) -> list[Any]:
        """For each leaf the values of the rows that ended, `[n, *value]`."""
        if isinstance(final, np.ndarray):
            found = [[leaf.read(final[b]) for b in ended] for leaf in self._single.observations]
        else:
            found = [leaf.read(final)[ended] for leaf in self._form.observations]
        return found + [leaf.read(info.get("final_info", {}))[ended] for leaf in self._form.infos]
