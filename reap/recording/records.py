"""What it takes to run an episode again: where its env was at the reset, its actions, and what to compare the results with.

    Note            where the generators of one env were before a reset, and the seed that the reset got
    ResetLog        notes of the resets of several envs since it was last read
    RolloutNotes    what a worker tells of one rollout, all rows at once; nothing in it is made per step
    EpisodeRecord   one episode, put together of the notes of the rollouts that it spans

A note costs as much as several steps of a quick env, so that not every reset has one. An episode without a note of its own is
reached through those before it: they are its `lead`, from the last reset that has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reap.keys import Key
from reap.recording.layout import Array
from reap.recording.trajectories import Episode

SEED_OF_WEIGHTS = 0x5EED
SHARE = 0.002
"""Share of the time that notes may take. Episodes between two notes are reached by repeating their actions from the first."""

MOST_COMPARED = 256
"""Bytes of a value that is kept as it is; of larger ones a checksum is kept."""

Values = Mapping[Key, Array]


class Note(NamedTuple):
    """Where an env was before a reset.

    Attributes:
        seed: that the reset got; None for none.
        state: of the generators of the env, and of the env itself where it can tell; plain data.
    """

    seed: int | None
    state: Mapping[str, Any]


class ResetLog:
    """Collects notes of the resets of several rows.

    After each `take`, the next reset of each row is noted if the last notes are so long ago that notes take no more than their
    share of the time. So a note is always of the first reset of its row after a `take`.
    """

    def __init__(self) -> None:
        self._notes: dict[int, Note] = {}
        self._note_next: list[Callable[[], None]] = []
        self._due_since = perf_counter()
        self._cost = 0.0
        self._elsewhere: list[Callable[[], Sequence[Mapping[int, Note]]]] = []

    def add_row(self, note_next: Callable[[], None]) -> None:
        """Include a row, whose next reset is noted.

        Args:
            note_next: has the next reset of the row noted, by `add`.
        """
        self._note_next.append(note_next)
        note_next()

    def add(self, row: int, note: Note, seconds: float) -> None:
        """Add the note of a row's next reset, which took this many seconds to make."""
        self._notes[row] = note
        # A moving average, in which a long wait for a core counts as a few notes.
        self._cost += (min(seconds, 8 * self._cost) - self._cost) / 16 if self._cost else seconds

    def read_from(self, take: Callable[[], Sequence[Mapping[int, Note]]]) -> None:
        """Include rows whose resets are noted elsewhere, such as in other processes.

        Args:
            take: returns their notes since its last call, in parts.
        """
        self._elsewhere.append(take)

    def take(self) -> dict[int, Note]:
        """The notes since the last call, by row."""
        taken, self._notes = self._notes, {}
        now = perf_counter()
        if now - self._due_since >= self._cost * len(self._note_next) / SHARE:
            for note_next in self._note_next:
                note_next()
            self._due_since = now
        for take in self._elsewhere:
            for part in take():
                taken.update(part)
        return taken


@dataclass(frozen=True)
class Recipe:
    """What an env is built from.

    Attributes:
        env_id: a gymnasium id; None with a factory.
        options: keywords of `GymEnv`.
        factory: what makes the env, pickled by cloudpickle, with its keywords; None with an id.
    """

    env_id: str | None = None
    options: Mapping[str, Any] | None = None
    factory: bytes | None = None


@dataclass(frozen=True)
class RolloutNotes:
    """What a worker tells of one rollout; places are flat, `row * columns + column`.

    Attributes:
        number: of the rollout, counted from 0.
        columns: of the slot.
        starts: places where segments begin, in order.
        ids: of the trajectory of each segment.
        begins: whether a segment is the beginning of its episode.
        lengths: of each segment.
        notes: by row, of its first reset in the rollout; only of rows that have one.
        actions: `[rows, columns, ...]` under each key.
        results: what followed, likewise; of large values a checksum, `[rows, columns]`.
        firsts: first observations of the segments that begin an episode, `[n, ...]`; of large ones a checksum, `[n]`.
        ends: places where episodes ended.
        terminated: of each episode that ended.
        truncated: of each episode that ended.
        episodes: returns and lengths of these.
        recipes: by row what builds its env, None where that is not known; only with the first rollout of a worker.
    """

    number: int
    columns: int
    starts: NDArray[np.int64]
    ids: NDArray[np.int64]
    begins: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    notes: Mapping[int, Note]
    actions: Values
    results: Values
    firsts: Values
    ends: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    episodes: Sequence[Episode]
    recipes: Sequence[Recipe | None] = ()


@dataclass(frozen=True, eq=False)
class EpisodeRecord:
    """One episode, and all that it takes to run it again: `reap.replay(env, record)`.

    `L` is its length. Values of more than 256 bytes a frame are kept as a checksum, a number for each frame.

    Attributes:
        id: of the trajectory, as in `("collector", "traj_ids")` of the batches.
        worker: who recorded it.
        row: the env, counted among those of the worker.
        recipe: what builds the env; None if that is not known.
        note: where the env was before the reset, or before that of the first episode of `lead`.
        lead: the actions of the episodes between the note and this one.
        actions: `[L, ...]` under each key.
        first: the first observation, under the keys of observations.
        results: what followed each action, `[L, ...]` under `("next", ...)`: observations and reward.
        reward: the sum of its rewards.
        length: number of steps.
        terminated: whether its last step was terminal.
        truncated: whether its last step was truncated.
        is_limited: whether it is as long as the collector's `max_frames_per_traj`, and was truncated.
    """

    id: int
    worker: int
    row: int
    recipe: Recipe | None
    note: Note
    lead: Sequence[Values]
    actions: Values
    first: Values
    results: Values
    reward: float
    length: int
    terminated: bool
    truncated: bool
    is_limited: bool

    def __repr__(self) -> str:
        end = "terminated" if self.terminated else "limited" if self.is_limited else "truncated"
        return f"EpisodeRecord(id={self.id}, length={self.length}, reward={self.reward:.6g}, {end})"


def compared(array: Array, lead: int) -> Array:
    """What is kept of values to compare with: a copy, or a checksum for each of large ones.

    Args:
        array: `[*lead, *value]`.
        lead: number of leading dimensions.
    """
    is_kept = array.dtype == object or array.dtype.itemsize * prod(array.shape[lead:]) <= MOST_COMPARED
    return array.copy() if is_kept else checksums(array, lead)


def checksums(array: Array, lead: int) -> NDArray[np.uint64]:
    """A number for each value, `[*lead]`: the sum of its words, each times a constant of its place, modulo 2**64.

    It reads memory once, about as fast as it can be read. A value that moved within a frame changes the number too.
    """
    shape = *array.shape[:lead], prod(array.shape[lead:])
    flat = np.ascontiguousarray(array).reshape(shape).view(np.uint8)
    words = flat.shape[-1] // 8
    weights = _weights(words + 1)
    whole, rest = flat[..., : words * 8], flat[..., words * 8 :]
    if not rest.shape[-1]:
        return np.einsum("...k,k->...", flat.view(np.uint64), weights[:words])
    last = np.zeros((*flat.shape[:-1], 8), np.uint8)
    last[..., : rest.shape[-1]] = rest
    sums = np.einsum("...k,k->...", np.ascontiguousarray(whole).view(np.uint64), weights[:words])
    return sums + last.view(np.uint64)[..., 0] * weights[words]


_known_weights: dict[int, NDArray[np.uint64]] = {}


def _weights(count: int) -> NDArray[np.uint64]:
    """Odd numbers, the same on every machine: the raw output of a generator does not change between versions of numpy."""
    found = _known_weights.get(count)
    if found is None:
        found = _known_weights[count] = np.random.PCG64(SEED_OF_WEIGHTS).random_raw(count) | np.uint64(1)
    return found
