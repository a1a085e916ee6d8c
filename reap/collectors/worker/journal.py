"""`Journal`: what a worker tells of each of its rollouts, so that the episodes can be run again.

reset      the env notes where it is              reap.envs.gymnasium.resets
rollout    frames lie in the slot                 as without a journal
its end    Journal.close: one copy for each key   RolloutNotes, with the reply of the rollout
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reap.envs.base import EnvBase
from reap.keys import Key
from reap.recording.buffers import FLAGS, TERMINATED, TRUNCATED, Slot, after
from reap.recording.layout import Array
from reap.recording.records import Note, RolloutNotes, compared
from reap.recording.trajectories import Episode, Segments
from reap.rollout.loop import Rollout


class Journal:
    """Notes of the rollouts of one env.

    Args:
        env: the env, which notes its resets from now on.

    Raises:
        OptionError: it cannot.
    """

    def __init__(self, env: EnvBase) -> None:
        env.keep_resets()
        flags = {after(key) for key in FLAGS}
        following = {key for key in env.slot_fields() if key[0] == "next"}
        self._env = env
        self._actions: list[Key] = [key for key in env.slot_fields() if key not in following]
        self._results: list[Key] = [key for key in env.slot_fields() if key in following - flags]
        self._observations: list[Key] = [key for key in env.fields_of_stage() if after(key) in self._results]
        self._reset: list[int] = []
        self._notes: dict[int, Note] = {}
        self._number = 0
        self._is_open = False

    def begin(self, rollout: Rollout) -> None:
        """A rollout begins. What was told before does not lead to it where one failed, or the env was used by hand."""
        is_own = self._env.owner is rollout
        self._reset = sorted(rollout.waiting) if is_own else list(range(self._env.batch_size.numel()))
        if self._is_open or not is_own:
            self.start_again()
        elif not self._number:
            self._note_again()
        self._is_open = True

    def _note_again(self) -> None:
        """Have rows noted again that are reset a second time before they have any frame."""
        self._notes = self._env.taken_resets()
        if self._reset:
            self._env.keep_resets()
            self._notes = {row: note for row, note in self._notes.items() if row not in self._reset}

    def start_again(self) -> None:
        """What follows does not continue what was told before."""
        self._env.keep_resets()
        self._notes = {}
        self._number = 0

    def close(self, rollout: Rollout, slot: Slot, episodes: Sequence[Episode]) -> RolloutNotes:
        """The notes of the rollout that was recorded in a slot.

        Args:
            rollout: it has just been closed.
            slot: where it was recorded.
            episodes: those that ended.
        """
        self._is_open = False
        number, self._number = self._number, self._number + 1
        notes, self._notes = self._notes, {}
        segments, ends = rollout.tracker.segments, rollout.tracker.ends
        begins = _begins_with_resets(segments, [*self._reset, *notes])
        return RolloutNotes(
            number,
            slot.columns,
            segments.starts,
            segments.ids,
            begins,
            segments.lengths,
            self._env.taken_resets() | notes,
            {key: slot.by_row(key).copy() for key in self._actions},
            {key: compared(slot.by_row(key), 2) for key in self._results},
            {key: compared(_flat(slot, key)[segments.starts[begins]], 1) for key in self._observations},
            ends,
            _flat(slot, after(TERMINATED))[ends, 0],
            _flat(slot, after(TRUNCATED))[ends, 0],
            episodes,
            () if number else self._env.row_recipes(),
        )


def _begins_with_resets(segments: Segments, reset: Sequence[int]) -> NDArray[np.bool_]:
    """Which segments begin an episode whose reset is known, given the rows that were reset before the first column.

    Episodes that continue from a state without frames are not among them.
    """
    begins = segments.begins
    resumed = np.ones(len(segments.firsts), np.bool_)
    resumed[reset] = False
    begins[segments.firsts[resumed]] = False
    return begins


def _flat(slot: Slot, key: Key) -> Array:
    array = slot.by_row(key)
    return array.reshape(slot.rows * slot.columns, *array.shape[2:])
