"""`FramePriorities`: the priorities of a storage's frames, as values of a tree that follows the ring.

Writers do not know about priorities, and may be other processes. So the tree catches up with the ring whenever it is needed:
new frames get the largest priority so far, frames being written get none until they are complete.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reap.data.reductions import REDUCTIONS
from reap.data.samplers.base import EMPTY
from reap.data.samplers.seen import Seen, columns_of_writes, places_of_columns, set_valid
from reap.data.samplers.sum_tree import Places, SumTree, Values
from reap.data.storages.base import Storage
from reap.errors import CallOrderError, OptionError, SpecMismatch
from reap.keys import Key, plain

NOT_KEPT = -1
"""The place that some writers return for a frame that they did not keep."""

FIRST_PRIORITY = 1.0
"""The priority of new frames before any other is known."""


@dataclass
class PriorityRule:
    """How priorities become values of the tree: `(priority + eps) ** alpha`.

    Attributes:
        alpha: exponent of the priorities.
        eps: added to each priority before the exponent.
        max_capacity: maximum number of frames in the buffer.
        reduction: combines several priorities of a frame.
        within_buffer: new frames get the largest priority in the buffer, instead of the largest ever.
        key: the key of priorities in the data; None if they have none.
    """

    alpha: float
    eps: float
    max_capacity: int
    reduction: str
    within_buffer: bool
    key: Key | None = None

    @property
    def first_power(self) -> float:
        """The value of new frames before any priority is known."""
        return (FIRST_PRIORITY + self.eps) ** self.alpha

    def powers(self, priority: Tensor, name: str) -> Values:
        """The values for priorities `[n]`.

        Raises:
            OptionError: a priority is negative or not finite, or its value is too large for a finite sum of all.
        """
        given: Values = priority.detach().cpu().double().numpy()
        with np.errstate(all="ignore"):
            values = (given + self.eps) ** self.alpha
        bound = sys.float_info.max / self.max_capacity
        if len(given) and not (given.min() >= 0 and values.max() <= bound):
            wrong = given[~((given >= 0) & (values <= bound))]
            raise OptionError(f"{name}: expected finite numbers from 0 on, got {wrong[0]}; nothing was changed")
        return values

    def reduced(self, priority: Tensor, frames: int) -> Tensor:
        """One priority for each frame; see `PrioritizedSampler.reduced`."""
        if priority.numel() % frames:
            raise SpecMismatch(f"priorities: expected one or several for each of {frames} frames, got {list(priority.shape)}")
        return REDUCTIONS[self.reduction](priority.reshape(frames, -1).double())


class FramePriorities:
    """The values of a storage's frames in a tree.

    Args:
        rule: turns priorities into values.

    Attributes:
        tree: the values; None before the first use.
        largest: the value of new frames.
    """

    def __init__(self, rule: PriorityRule) -> None:
        self.rule = rule
        self.forget()

    def forget(self) -> None:
        """Forget the values of all frames."""
        self.tree: SumTree | None = None
        self._known_of = ""
        """The identity of the storage of these frames; empty before the first use."""
        self._seen = Seen()
        self._exponent, self.largest = self.rule.alpha, self.rule.first_power

    @property
    def of_new(self) -> float:
        """The priority of new frames."""
        largest = self.largest
        if self.rule.within_buffer and self.tree is not None:
            largest = self.tree.highest or self.rule.first_power
        if not self._exponent or largest == self.rule.first_power:
            return FIRST_PRIORITY
        return max(0.0, largest ** (1 / self._exponent) - self.rule.eps)

    def change_alpha(self, alpha: float) -> None:
        """Use another exponent from now on.

        Raises:
            OptionError: it was 0 until now, and priorities were given already.
        """
        if self.tree is not None and not self._exponent and alpha:
            raise OptionError("alpha: cannot be changed from 0, where priorities are forgotten; make a new sampler")
        self.rule.alpha = alpha
        if self.tree is None:
            self.forget()

    def update(self, at: Places, values: Values, storage: Storage) -> None:
        """Set the values of frames; those that are gone are ignored.

        Raises:
            OptionError: a place outside the buffer; nothing is changed.
        """
        size = storage.rows * storage.ring.capacity
        if len(at) and not (at.min() >= NOT_KEPT and at.max() < size):
            outside = at[(at < NOT_KEPT) | (at >= size)]
            raise OptionError(f"update_priority: expected places from 0 to {size - 1}, got {outside[0]}")
        tree = self.caught_up(storage)
        if (held := self._held(at, storage)) is not None:
            at, values = at[held], values[held]
        set_valid(tree, at, values, storage)
        self.largest = max(self.largest, float(values.max(initial=0.0)))

    def renew(self, places: Tensor, storage: Storage) -> None:
        """Give frames the value of new ones."""
        if self.tree is not None:
            tree, at = self.caught_up(storage), places.cpu().numpy()
            at = np.unique(at[at != NOT_KEPT])
            set_valid(tree, at, self._powers_of_new(at, storage), storage)

    def repair(self) -> None:
        """Compute the sums of the tree again."""
        if self.tree is not None:
            self.tree = SumTree.of(self.tree.values)

    def _held(self, places: Places, storage: Storage) -> Any:
        """The mask of places whose frame has not changed since the ring was last looked at; None if all are unchanged."""
        oldest, claimed, writing = self._seen
        capacity = storage.ring.capacity
        if claimed - oldest == capacity and not writing and places.min(initial=0) != NOT_KEPT:
            return None
        columns = claimed - 1 - (claimed - 1 - places) % capacity
        return (places != NOT_KEPT) & (columns >= oldest) & ~np.isin(columns, columns_of_writes(writing, oldest, claimed))

    # ------------------------------------------------------------------ new frames

    def caught_up(self, storage: Storage) -> SumTree:
        """The tree, updated with all frames written so far."""
        ring = storage.ring
        # In this order: later claims are handled the next time, and all columns published until now can be read.
        oldest, claimed = ring.oldest, ring.claimed
        writing = tuple(write for write in ring.under_way() if write[0] < claimed)
        if oldest > max(self._seen.oldest, claimed - ring.capacity):  # it was emptied, maybe in another process
            self.forget()
        if self.tree is None:
            self.tree = self._new_tree(storage)
        known_of = self._known_of = self._known_of or storage.identity
        if known_of != storage.identity or self.tree.size != storage.rows * ring.capacity:
            raise OptionError("PrioritizedSampler: has the priorities of another buffer; call empty() on it, or make a new one")
        if self._exponent != self.rule.alpha:
            self._change_exponent(self.tree)
        seen = Seen(max(oldest, claimed - ring.capacity), claimed, writing)
        if seen != self._seen:
            self._take_in(self.tree, storage, seen)
        return self.tree

    def _new_tree(self, storage: Storage) -> SumTree:
        if not storage.is_initialised:
            raise CallOrderError(EMPTY)
        size, most = storage.rows * storage.ring.capacity, self.rule.max_capacity
        if size > most and storage.max_size > most:
            raise OptionError(
                f"max_capacity={most}: expected room for all frames of the buffer, which holds {size}; "
                f"use PrioritizedSampler({size}, ...)"
            )
        return SumTree(size)

    def _take_in(self, tree: SumTree, storage: Storage, seen: Seen) -> None:
        """Give new frames their value, and none to those that are being written."""
        oldest, claimed, writing = seen
        before = (self._seen.claimed, claimed - self._seen.claimed)
        hidden = columns_of_writes(writing, oldest, claimed)
        changed = columns_of_writes((before, *self._seen.writing), oldest, claimed)
        places = places_of_columns(changed[~np.isin(changed, hidden)], storage)
        tree.set(places_of_columns(hidden, storage), 0.0)
        if self.rule.within_buffer:
            tree.set(places, 0.0)
            self.largest = tree.highest or self.rule.first_power
        set_valid(tree, places, self._powers_of_new(places, storage), storage)
        self._seen = seen

    def _powers_of_new(self, places: Places, storage: Storage) -> Values | float:
        """The values of new frames: one number each, or one for all."""
        key = self.rule.key
        if key is None or key not in storage.keys or not len(places):
            return self.largest
        stored = storage.leaf(key)
        priority = stored[torch.from_numpy(places).to(stored.device)]
        values = self.rule.powers(self.rule.reduced(priority, len(places)), f"{plain(key)!r} in the buffer")
        self.largest = max(self.largest, float(values.max()))
        return values

    def _change_exponent(self, tree: SumTree) -> None:
        power = self.rule.alpha / self._exponent
        tree.set(np.arange(tree.size), np.where(tree.values > 0, tree.values**power, 0.0))
        self.largest, self._exponent = self.largest**power, self.rule.alpha

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """The values, and the part of the ring that they cover."""
        return {
            "exponent": self._exponent,
            "powers": None if self.tree is None else torch.from_numpy(self.tree.values.copy()),
            "largest": self.largest,
            "oldest": self._seen.oldest,
            "claimed": self._seen.claimed,
            "writing": [list(write) for write in self._seen.writing],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state`; `resume` names the storage."""
        powers, self._known_of = state["powers"], ""
        self.tree = None if powers is None else SumTree.of(powers.double().numpy())
        self._exponent, self.largest = state["exponent"], state["largest"]
        writing = tuple((start, count) for start, count in state["writing"])
        self._seen = Seen(state["oldest"], state["claimed"], writing)

    def resume(self, storage: Storage) -> None:
        """Use the restored values for this storage."""
        self._known_of = storage.identity
