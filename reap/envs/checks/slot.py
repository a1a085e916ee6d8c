"""`SlotCheck`: checks the values of a recorded rollout before the user gets it.

NaN        an error, in observations, rewards and actions
choices    an error, unless the env checks them one by one
bounds     an error with check="all"; otherwise counted, with one warning per key, since many envs exceed them by rounding
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from reap.envs.checks.looks import Look, Mask, choice_look, number_looks
from reap.envs.specs import EnvSpecs
from reap.errors import SpecMismatch
from reap.keys import Key, plain
from reap.recording.buffers import IDS, MASK, Slot, after
from reap.recording.layout import Array, numpy_dtype
from reap.recording.trajectories import NO_ID
from reap.specs.fits import Check, Outside


class Watched(NamedTuple):
    """The check of the values under a key of the slot, and the call that returned them."""

    key: Key
    look: Look
    where: str
    name: Key
    only_first: bool = False
    """Check only frames that start an episode; other observations came with the previous step."""


class SlotCheck:
    """Checks the columns of a slot.

    Args:
        env: the env whose values are recorded in it.
        check: how closely values are checked.
        checks_choices: the env checks choices itself.
    """

    def __init__(self, env: EnvSpecs, check: Check, *, checks_choices: bool) -> None:
        self._refuses_bounds = check == "all"
        self._errors: list[Watched] = []
        self._bounds: list[Watched] = []
        if check == "first":
            return
        lead = len(env.batch_size)
        for key, spec in env.observation_spec.leaves():
            numbers, bounds = number_looks(spec, lead)
            choices = None if checks_choices else choice_look(spec, lead)
            for look in (numbers, choices):
                self._errors += [] if look is None else [*_both(key, look)]
            self._bounds += [] if bounds is None else [*_both(key, bounds)]
        for key, spec in env.full_reward_spec.leaves():
            numbers, bounds = number_looks(spec, lead)
            self._errors += [] if numbers is None else [Watched(after(key), numbers, "env.step", key)]
            self._bounds += [] if bounds is None else [Watched(after(key), bounds, "env.step", key)]
        for key, spec in env.full_action_spec.leaves():
            numbers, _ = number_looks(spec, lead)
            choices = None if checks_choices else choice_look(spec, lead)
            self._errors += [Watched(key, look, "policy", key) for look in (numbers, choices) if look is not None]

    def look(self, slot: Slot, columns: range, begun: Sequence[int]) -> list[Outside]:
        """Check columns whose ids are written; return numbers outside their bounds.

        Args:
            slot: the slot.
            columns: the columns that were recorded.
            begun: rows whose first column starts an episode.

        Raises:
            SpecMismatch: a NaN, an invalid choice, or with check="all" a number outside its bounds.
        """
        for watched in self._errors:
            array = _values(slot, watched.key)[:, columns.start : columns.stop]
            if not watched.look.is_fine(array) and (wrong := _valid(watched, array, slot, columns, begun)).any():
                raise _mismatch(watched, array, wrong, columns)
        found: dict[Key, Outside] = {}
        for watched in self._bounds:
            array = _values(slot, watched.key)[:, columns.start : columns.stop]
            if not watched.look.is_fine(array) and (wrong := _valid(watched, array, slot, columns, begun)).any():
                error = _mismatch(watched, array, wrong, columns)
                if self._refuses_bounds:
                    raise error
                before = found.get(watched.name)
                frames = int(np.count_nonzero(wrong)) + (before.frames if before else 0)
                found[watched.name] = Outside(watched.name, frames, before.text if before else str(error))
        return list(found.values())


def _both(key: Key, look: Look) -> Iterator[Watched]:
    """The checks of an observation as a result of a step, and as the start of an episode."""
    yield Watched(after(key), look, "env.step", key)
    yield Watched(key, look, "env.reset", key, only_first=True)


def _values(slot: Slot, key: Key) -> Array:
    dtype = slot.fields[key].dtype
    if dtype.is_floating_point and numpy_dtype(dtype).kind != "f":  # bfloat16, which numpy does not have
        return slot.tensor(key).float().reshape(slot.rows, slot.columns, *slot.fields[key].shape).numpy()
    return slot.by_row(key)


def _valid(watched: Watched, array: Array, slot: Slot, columns: range, begun: Sequence[int]) -> Mask:
    """Which frames `[E, T]` are wrong, of those to be checked."""
    ids = slot.by_row(IDS)[:, columns.start : columns.stop]
    counts = ids != NO_ID if MASK in slot.fields else np.ones(ids.shape, bool)
    if watched.only_first:
        first = np.zeros(ids.shape, bool)
        first[:, 1:] = ids[:, 1:] != ids[:, :-1]
        first[list(begun), 0] = True
        counts &= first
    return watched.look.wrong(array) & counts


def _mismatch(watched: Watched, array: Array, wrong: Mask, columns: range) -> SpecMismatch:
    row, t = (int(i) for i in np.argwhere(wrong.T)[0][::-1])
    expected, found = watched.look.words(array[row, t], row)
    text = f"{watched.where}: {plain(watched.name)!r}: expected {expected}, found {found}"
    return SpecMismatch(text).at(f"column {columns.start + t}").at(f"row {row}")
