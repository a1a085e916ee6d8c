"""`Overlap`: the step loop over two halves of the rows: one steps while the policy serves the other.

    policy   | act A0 | act B0 | act A1 | act B1 | act A2 | ...
    half A            |--- step A0 ---| |--- step A1 ---|
    half B                     |--- step B0 ---| |--- step B1 ---|

    for each column t
        second half   record, act, send
        first half    receive, carry, end; then record, act and send column t + 1
        second half   receive, carry, end

Stage, slot, tracker and env belong to one `Rollout`, and rows are processed in the same order as there: the first half before
the second, column after column. So ids, resets and states are the same, and a state of either can be loaded by the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from reap.envs.row_stepper import Rows, StepperHalf
from reap.policy.actors.halves import HalvesActor
from reap.recording.buffers import Slot
from reap.rollout.loop import POLICY, STEP, Hook, Pairs, Rollout
from reap.workers.progress import COLUMN, PHASE


class Half:
    """One half of the rows of a rollout.

    Args:
        rollout: the rollout.
        half: its rows and their face.
        hooks: called after each step of these rows; True ends the rollout with that column.
        lag: number of columns by which the other half lags when this one acts or ends, for the control block's count of
            complete columns.
    """

    def __init__(self, rollout: Rollout, half: StepperHalf, hooks: Sequence[Hook], lag: int) -> None:
        self._rollout, self._face, self._rows = rollout, half.face, half.rows
        self._hooks, self._lag = tuple(hooks), lag
        self._active: Rows | None = None
        self._record: Pairs = []
        self._carry: Pairs = []
        self._act: Callable[[int], None]
        self.policy_seconds = 0.0

    def bind(self, slot: Slot, act: Callable[[int], None]) -> None:
        """Bind the arrays that later calls read and write."""
        rows = slice(self._rows.start, self._rows.stop)
        record, carry = self._rollout.copies(slot)
        self._record = [(root[:, rows], array[rows]) for root, array in record]
        self._carry = [(array[rows], following[:, rows]) for array, following in carry]
        self._act = act
        self._find_active()

    def _find_active(self) -> None:
        active = self._rollout.active
        self._active = None if active is None else [b for b in active if b in self._rows]

    def send(self, t: int) -> None:
        """Record, act, and send the actions of column `t` to the envs."""
        control = self._rollout.control
        for root, array in self._record:
            root[t] = array
        control[PHASE], control[COLUMN] = POLICY, max(0, t - self._lag)
        before = perf_counter()
        self._act(t)
        self.policy_seconds += perf_counter() - before
        control[PHASE] = STEP
        self._face.send(self._active, t)

    def receive(self, t: int, columns: int) -> bool:
        """Wait for the results, and handle rows that ended.

        Args:
            t: the column.
            columns: number of columns in the rollout.

        Returns:
            Whether the rollout ends with this column.
        """
        rollout, stopped = self._rollout, False
        ended = self._face.receive()
        for array, following in self._carry:
            array[...] = following[t]
        for hook in self._hooks:
            stopped = hook() or stopped
        if ended is not None or t >= rollout.tracker.due:
            rollout.control[COLUMN] = t - self._lag
            stopped = rollout.end(ended, t, t + 1 if stopped else columns, self._rows) or stopped
            self._find_active()
        return stopped


class Overlap:
    """Fills slots with rollouts of two halves.

    Args:
        rollout: the rollout of all rows.
        halves: its halves.
        hooks: the hooks of each half.
    """

    def __init__(self, rollout: Rollout, halves: Sequence[StepperHalf], hooks: Sequence[Sequence[Hook]]) -> None:
        self._rollout = rollout
        self._halves = [Half(rollout, *of_half, 1 - place) for place, of_half in enumerate(zip(halves, hooks, strict=True))]

    def fill(self, slot: Slot, actor: HalvesActor, start: int = 0) -> int:
        """Record one rollout; see `Rollout.fill`."""
        rollout, columns = self._rollout, slot.columns
        first, second = self._halves
        t = start - 1
        with rollout.recording(slot, actor, start):
            for half, act in zip(self._halves, actor.acts, strict=True):
                half.bind(slot, act)
            before, policy_before = perf_counter(), first.policy_seconds + second.policy_seconds
            first.send(start)
            for t in range(start, columns):
                second.send(t)
                stopped = first.receive(t, columns)
                last = t + 1 if stopped else columns
                if t + 1 < last:
                    first.send(t + 1)
                if second.receive(t, last) or stopped:
                    break
            policy_seconds = first.policy_seconds + second.policy_seconds - policy_before
            rollout.policy_seconds += policy_seconds
            rollout.env_seconds += perf_counter() - before - policy_seconds
        return rollout.finish(slot, t + 1)
