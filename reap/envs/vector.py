"""Rows of a vector env, stepped together: the array face of `GymEnv` over one.

Observations, rewards and flags are written for all rows at once, by one copy for each key. How rows that ended begin anew is
chosen at construction (`vector_kinds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reap.buffers import Slot, Stage
from reap.envs.base import Rows, StepRows
from reap.envs.gym_rows import RowArrays, RowFormat
from reap.envs.values import assemble
from reap.envs.vector_calls import VectorCalls
from reap.envs.vector_kinds import Mode
from reap.errors import SpecMismatch
from reap.layout import Array

TRUE = b"\x01"
"""A flag that is set; looking for it among the bytes of a column takes a tenth of the time of `any`."""


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
        self._write_first = self._write_first_array if form.is_array else self._write_first_tree
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

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Take the arrays that following calls read and write."""
        arrays = self._arrays = RowArrays(self._form, stage, slot)
        self._stage, self._next, self._actions = arrays.stage[0], arrays.next[0], arrays.actions[0]
        self._reward, self._terminated, self._truncated = arrays.reward, arrays.terminated, arrays.truncated

    # ------------------------------------------------------------------ resets

    def seed(self, seeds: Sequence[int]) -> None:
        """Give each row its seed at the next reset."""
        self.calls.seed(seeds)

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Begin a new episode in these rows, or in all.

        Raises:
            OptionError: some rows, of an env that can only reset all.
        """
        calls = self.calls
        fresh = self._take_fresh(rows) if self._fresh_rows else None
        if fresh:
            self._write_first(*self._fresh, fresh, fresh)
            done = set(fresh)
            rows = [b for b in (self._every_row if rows is None else rows) if b not in done]
            if not rows:
                return
        if rows is None:
            self._write_first(*calls.reset(), ..., ...)
        else:
            chosen = np.asarray(rows)
            observation, info, where = calls.reset_some(chosen)
            self._write_first(observation, info, chosen, where)

    def _take_fresh(self, rows: Rows | None) -> list[int]:
        """Those of the rows that are at the start of an episode already."""
        fresh, self._fresh_rows = self._fresh_rows, []
        if rows is None:
            suffices = self.calls.kind.takes_mask or len(fresh) == self.calls.count
            return fresh if suffices and not self.calls.has_seeds else []
        chosen = set(rows)
        self._fresh_rows = [b for b in fresh if b not in chosen]
        return [b for b in fresh if b in chosen]

    def _write_first_array(self, observation: Any, info: Any, rows: Any, where: Any) -> None:
        self._stage[rows] = observation[where]

    def _write_first_tree(self, observation: Any, info: Any, rows: Any, where: Any) -> None:
        for array, values in zip(self._arrays.stage, self._form.values(observation, info), strict=True):
            array[rows] = values[where]

    # ------------------------------------------------------------------ steps

    def _step_array(self, rows: Rows | None, t: int) -> Rows | None:
        """The hot path: an observation of one array, and all rows."""
        self._next[t], self._reward[t], terminated, truncated, info = result = self.calls.step(self._decode(self._actions[t]))
        if TRUE in terminated.tobytes() or TRUE in truncated.tobytes():
            return self._end(t, result[0], terminated, truncated, info)
        return None

    def _step_tree(self, rows: Rows | None, t: int) -> Rows | None:
        return self._write(self.calls.step(self._read_actions(t)), t)

    def _step_chosen(self, rows: Rows | None, t: int) -> Rows | None:
        """Step all rows of an EnvPool, or only some."""
        if rows is None:
            return self._step_all(None, t)
        actions = assemble(self._form.action_space, [leaf.many(a[t][rows]) for leaf, a in self._action_arrays()])
        observation, reward, terminated, truncated, info = self.calls.step_some(rows, actions)
        for array, values in zip(self._arrays.next, self._form.values(observation, info), strict=True):
            array[t, rows] = values[: len(rows)]
        self._reward[t, rows] = reward
        self._terminated[t, rows], self._truncated[t, rows] = terminated, truncated
        ended = (terminated | truncated).nonzero()[0].tolist()
        return [rows[i] for i in ended] or None

    def _step_and_forget(self, rows: Rows | None, t: int) -> Rows | None:
        """The observations that began episodes with the last step are gone with this one."""
        self._fresh_rows = []
        return self._step_all(None, t)

    def send(self, rows: Rows | None, t: int) -> None:
        """Give the actions of column `t` to all rows."""
        self._t, self._fresh_rows = t, []
        self.calls.send(self._read_actions(t))

    def receive(self) -> Rows | None:
        """Write what the rows answered; return those whose episode ended."""
        return self._write(self.calls.receive(), self._t)

    def _read_actions(self, t: int) -> Any:
        return assemble(self._form.action_space, [leaf.many(array[t]) for leaf, array in self._action_arrays()])

    def _action_arrays(self) -> Any:
        return zip(self._form.actions, self._arrays.actions, strict=True)

    def _write(self, result: Any, t: int) -> Rows | None:
        observation, self._reward[t], terminated, truncated, info = result
        for array, values in zip(self._arrays.next, self._form.values(observation, info), strict=True):
            array[t] = values
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
        """Put the last observations and infos of rows that were reset in place of the first ones."""
        final = info.get("final_obs")
        if final is None:
            raise SpecMismatch(
                f"{self.calls.env}: rows {ended} ended in same-step mode, and info has no 'final_obs', only {sorted(info)}; "
                "gymnasium.vector.AutoresetMode says what it holds"
            )
        count = len(self._form.observations)
        arrays = self._arrays.next
        for array, leaf, batched in zip(arrays[:count], self._single.observations, self._form.observations, strict=True):
            if isinstance(final, np.ndarray):
                for b in ended:
                    array[t, b] = leaf.read(final[b])
            else:
                array[t, ended] = batched.read(final)[ended]
        for array, leaf in zip(arrays[count:], self._form.infos, strict=True):
            array[t, ended] = leaf.read(info.get("final_info", {}))[ended]
