"""The step loop: one rollout of an env with an actor, recorded in a slot.

for each column t
    record   stage -> slot root[t]
    act      the actor reads the stage and writes action[t]
    step     the env reads action[t] and writes next[t]
    carry    slot next[t] -> stage
    end      rows that are done: flags, ids, reset (rare, in a separate method)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from time import perf_counter
from typing import Any

import numpy as np

from reap.envs.base import EnvBase
from reap.envs.checks.slot import SlotCheck
from reap.errors import OptionError, SpecMismatch, add_note, shown, telling
from reap.policy.base import Actor
from reap.recording.buffers import IDS, MASK, STEP_COUNT, Slot, Stage, after
from reap.recording.layout import Array
from reap.recording.objects import fill, to_states
from reap.recording.trajectories import NO_ID, NO_LIMIT, TrajectoryTracker
from reap.specs.fits import Outside
from reap.workers.progress import COLUMN, PHASE, new_control

Hook = Callable[[], Any]

Pairs = list[tuple[Array, Array]]


class Phase(IntEnum):
    """The phase of a rollout; its value is written to the control block, for errors and stall reports."""

    IDLE = 0
    RESET = 1
    POLICY = 2
    STEP = 3
    WRITE = 4


POLICY, STEP = int(Phase.POLICY), int(Phase.STEP)
"""Plain integers for the loop, because reading an enum member costs more."""


class Rollout:
    """Env, stage and tracker of one set of rows.

    Args:
        env: the env.
        stage: the policy's inputs, which hold the first observations already.
        tracker: ids and limits.
        hooks: called after each step; True ends the rollout with that column.
        reset_when_done: reset rows that end; otherwise they idle until all rows have ended.
        check: checks the recorded values at the end of each rollout; by default the env's check.

    Attributes:
        outside: numbers outside their bounds in the last rollout.
        waiting: rows that are reset when the next rollout starts.
    """

    def __init__(
        self,
        env: EnvBase,
        stage: Stage,
        tracker: TrajectoryTracker,
        *,
        hooks: Sequence[Hook] = (),
        reset_when_done: bool = True,
        check: SlotCheck | None = None,
    ) -> None:
        self.env = env
        self.stage = stage
        self.tracker = tracker
        self.env_seconds = 0.0
        self.policy_seconds = 0.0
        self.columns_done = 0
        self.control = new_control()
        self.outside: list[Outside] = []
        self._check = check or SlotCheck(env, env.check, checks_choices=env.checks_choices)
        self._face = env.row_stepper()
        self._hooks = tuple(hooks)
        self.end = self._reset_ended if reset_when_done else self._idle_ended
        if env.resets_itself:
            self.end = self._skip_ended
        self._lets_idle = not reset_when_done
        self._every_row = range(stage.rows)
        self._objects = {key: array for key, array in stage.arrays.items() if stage.fields[key].is_object}
        # A step count of ours is counted in the stage; one that the env observes is carried like any observation.
        self._counted = {STEP_COUNT} & stage.initial.keys()
        self.waiting: set[int] = set()
        # Rows whose next frame is the env's own reset step, and rows which had it with the last column.
        self._skipping: set[int] = set()
        self._skipped: set[int] = set()
        # Where the rollout begins: its first column, and the rows whose episode begins with it.
        self._first_column = 0
        self._begun: set[int] = set(self._every_row)
        self.active: list[int] | None = None
        self._carried: list[tuple[Array, Array, Array]] = []
        env.owner = self
        tracker.begin(self._every_row, 0)

    def restart(self, rows: Iterable[int] | None = None) -> None:
        """Start new episodes in these rows (None: all) with the next rollout.

        Raises:
            OptionError: a row that does not exist.
        """
        chosen = self._every_row if rows is None else list(rows)
        unknown = [b for b in chosen if b not in self._every_row]
        if unknown:
            raise OptionError(f"reset: expected rows from 0 to {len(self._every_row) - 1}, got {unknown}")
        resets_rows = self.env.resets_rows and not self.env.resets_itself
        if not resets_rows and chosen and len(set(chosen)) < len(self._every_row):
            raise OptionError(f"{self.env!r} can only reset all of its rows at once, not {sorted(chosen)}")
        self.waiting.update(chosen)

    def state(self) -> dict[str, Any]:
        """The state of unfinished episodes, and of the env if it offers one, as tensors, numbers and lists.

        It includes objects that the policy sees next. If one is not plain data, the env is treated as one without state.
        """
        if self.env.owner is not self:  # used by hand meanwhile: the next rollout begins new episodes, here and after a load
            self.restart()
            self.env.owner = self
        objects = {"/".join(key): to_states(array) for key, array in self._objects.items()}
        return {
            "rows": len(self._every_row),
            "tracker": self.tracker.state(),
            "stage": {"/".join(key): tensor.clone() for key, tensor in self.stage.tensors.items()},
            "rows_to_reset": [sorted(rows) for rows in (self.waiting, self._skipping, self._skipped)],
            "objects": objects,
            "env": None if None in objects.values() else self.env.loop_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; with an env that offers no state, start new episodes with new ids.

        Raises:
            SpecMismatch: the state belongs to other rows or other policy inputs, or to another env; nothing is changed then.
        """
        self.check_state(state)
        going_on = state["env"] is not None
        if going_on:
            self.env.load_loop_state(state["env"])
        self.tracker.restore(state["tracker"], going_on=going_on)
        if not going_on:
            self.restart()
            return
        self.env.owner = self
        for key, tensor in self.stage.tensors.items():
            tensor.copy_(state["stage"]["/".join(key)])
        for key, array in self._objects.items():
            fill(array, state["objects"]["/".join(key)])
        self.waiting, self._skipping, self._skipped = (set(rows) for rows in state["rows_to_reset"])

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise SpecMismatch if `restore` would."""
        expected: dict[str, Any] = {"/".join(key): (tuple(t.shape), t.dtype) for key, t in self.stage.tensors.items()}
        expected.update(dict.fromkeys(map("/".join, self._objects), "objects"))
        found: dict[str, Any] = {name: (tuple(t.shape), t.dtype) for name, t in state["stage"].items()}
        found.update(dict.fromkeys(state["objects"], "objects"))
        if (len(self._every_row), expected) != (state["rows"], found):
            raise SpecMismatch(
                f"state: expected {len(self._every_row)} rows with inputs {expected}, found {state['rows']} rows with {found}; "
                "it belongs to another env or policy"
            )
        if state["env"] is not None and self.env.loop_state() is None:
            raise SpecMismatch(f"state: it holds the state of an env, and {self.env!r} offers none; it belongs to another env")
        rows, tracker, waiting = state["rows"], state["tracker"], state["rows_to_reset"]
        lengths = [len(tracker[name]) for name in ("ids", "count", "return")] + [
            len(held) for held in state["objects"].values() if held is not None
        ]
        numbers = [tracker["begun"], *tracker["ids"], *tracker["count"], *(row for one in waiting for row in one)]
        fits = lengths == [rows] * len(lengths) and all(type(number) is int for number in numbers) and len(waiting) == 3
        if not (fits and all(row in self._every_row for one in waiting for row in one)):
            raise SpecMismatch(f"state: expected ids, counts and returns of {rows} rows, found {tracker}, waiting: {waiting}")

    def fill(self, slot: Slot, actor: Actor, start: int = 0) -> int:
        """Record one rollout; return the number of valid frames, which is less than the slot's if it was ended early.

        Args:
            slot: the slot to record in.
            actor: chooses the actions.
            start: the first column to record, if another worker recorded the earlier ones.
        """
        step, control, hooks, every = self._face.step_rows, self.control, self._hooks, self._every_row
        tracker, clock, columns = self.tracker, perf_counter, slot.columns
        t, stopped = start - 1, False
        with self.recording(slot, actor, start):
            act = actor.act
            record, carry = self.copies(slot)
            rows = self.active
            policy_seconds = env_seconds = 0.0
            last = clock()
            for t in range(start, columns):
                for root, array in record:
                    root[t] = array
                control[0], control[1] = POLICY, t
                act(t)
                now = clock()
                policy_seconds += now - last
                control[0] = STEP
                ended = step(rows, t)
                for array, following in carry:
                    array[...] = following[t]
                for hook in hooks:
                    stopped = hook() or stopped
                if ended is not None or t >= tracker.due:
                    stopped = self.end(ended, t, t + 1 if stopped else columns, every) or stopped
                    rows = self.active
                last = clock()
                env_seconds += last - now
                if stopped:
                    break
        self.policy_seconds += policy_seconds
        self.env_seconds += env_seconds
        return self.finish(slot, t + 1)

    def recording(self, slot: Slot, actor: Actor, start: int) -> telling:
        """Start a rollout; after an exception in the `with` block, which gets a note, the next rollout starts new episodes."""
        self.env.ensure_open()
        self.control[COLUMN] = -1
        body = telling(self._break_off)
        with body:
            self._start(slot, actor, start)
        return body

    def _break_off(self, error: BaseException) -> None:
        self.restart()
        phase, t = Phase(self.control[PHASE]).name.lower(), self.control[COLUMN]
        where = f"column {t}" if t >= 0 else "before the first column"
        add_note(error, f"reap: raised in {phase} of {shown(self.env)}, {where} of a rollout")

    def _start(self, slot: Slot, actor: Actor, start: int) -> None:
        self._first_column = start
        slot.clear_flags()
        self._face.bind(self.stage, slot)
        actor.bind(slot)
        if self.env.owner is not self:
            self.restart()
            self.env.owner = self
        if self.waiting:
            self._reset(None if len(self.waiting) == len(self._every_row) else sorted(self.waiting), -1)
            self._begun |= self.waiting
            for rows in (self.waiting, self._skipping, self._skipped):
                rows.clear()
        self._begun |= self._skipped
        self.tracker.begin(self._skipped, 0)
        self._skipped.clear()
        self.tracker.bind(slot)
        if start:
            self.tracker.skip_to(start)
        if self._skipping:
            self.tracker.due = 0
        if self._lets_idle:
            idle = self.tracker.idle
            self.active = [b for b in self._every_row if b not in set(idle)] if idle else None
            self._carried = [
                (slot.by_column(key), array, slot.by_column(after(key)))
                for key, array in self.stage.arrays.items()
                if key not in self._counted and after(key) in slot.fields
            ]
            for _, array, following in self._carried if idle else ():
                following[:, idle] = array[idle]

    def copies(self, slot: Slot) -> tuple[Pairs, Pairs]:
        """Pairs of arrays: column of the slot and stage for `record`, stage and column of the slot for `carry`."""
        arrays = self.stage.arrays
        record = [(slot.by_column(key), array) for key, array in arrays.items() if key in slot.fields]
        back = [(array, after(key)) for key, array in arrays.items() if key not in self._counted]
        return record, [(array, slot.by_column(key)) for array, key in back if key in slot.fields]

    def _reset(self, rows: Sequence[int] | None, t: int) -> None:
        self.control[PHASE] = Phase.RESET
        self._face.reset_rows(rows, t)
        self.stage.begin(rows)
        self.tracker.begin(self._every_row if rows is None else rows, t + 1)

    def _reset_ended(self, ended: Sequence[int] | None, t: int, columns: int, among: range) -> bool:
        rows = self._record_end(ended, t, among)
        if t + 1 == columns:
            self.waiting.update(rows)
        elif rows:
            self._reset(rows, t)
        return False

    def _idle_ended(self, ended: Sequence[int] | None, t: int, columns: int, among: range) -> bool:
        rows = self._record_end(ended, t, among)
        idle = set(self.tracker.idle)
        self.active = [b for b in self._every_row if b not in idle]
        if not self.active:
            self.restart()
            return True
        # Nothing is written for idle rows any more: the policy sees again and again what it acted on last, a valid input.
        for root, array, following in self._carried:
            array[rows] = following[t + 1 :, rows] = root[t, rows]
        return False

    def _skip_ended(self, ended: Sequence[int] | None, t: int, columns: int, among: range) -> bool:
        """Handle an env whose step after an end is its reset step, an invalid frame after which the episode starts."""
        begun, over = self._skipping.intersection(among), set(ended or ())
        self._skipping = (self._skipping - begun) | over
        # A reset step may end at once: that was no episode, and the next step is a reset step too.
        self.tracker.end(sorted(over - begun), t)
        rows = sorted(begun - over)
        if rows:
            self.stage.begin(rows)
            if t + 1 == columns:
                self._skipped.update(rows)
            else:
                self.tracker.begin(rows, t + 1)
        self.tracker.due = 0 if self._skipping else NO_LIMIT
        return False

    def _record_end(self, ended: Sequence[int] | None, t: int, among: range) -> Sequence[int]:
        rows = self.tracker.reach_limit(ended, t, among) if t >= self.tracker.due else ended
        if rows is None:
            return ()
        self.tracker.end(rows, t)
        return rows

    def finish(self, slot: Slot, columns: int) -> int:
        """End the rollout before `columns`: write ids, counts and flags; return the number of valid frames.

        Raises:
            SpecMismatch: recorded values are invalid; the next rollout starts new episodes.
        """
        self.control[PHASE] = Phase.WRITE
        self.columns_done = columns
        self.tracker.close(columns)
        begun, self._begun = sorted(self._begun), set()
        try:
            self.outside = self._check.look(slot, range(self._first_column, columns), begun)
        except SpecMismatch as error:
            self.tracker.take_finished()
            self.restart()
            add_note(error, f"reap: found in a rollout of {shown(self.env)}, which is dropped")
            raise
        frames = slot.rows * slot.columns
        if MASK in slot.fields:
            mask = slot.by_row(MASK)
            np.not_equal(slot.by_row(IDS), NO_ID, out=mask)
            frames = int(np.count_nonzero(mask))
            if frames < mask.size:
                slot.blank(~mask)
        self.control[PHASE] = Phase.IDLE
        return frames
