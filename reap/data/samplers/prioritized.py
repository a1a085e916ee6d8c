"""`PrioritizedSampler`: draws frames in proportion to their priorities.

Schaul, Quan, Antonoglou, Silver: "Prioritized Experience Replay", ICLR 2016 (arXiv:1511.05952), the proportional variant:

    P(i) = q_i / Σ q                q_i = (priority_i + eps) ** alpha, the values of the tree
    weight_i = (q_i / min q) ** -beta

The weights are (N P(i)) ** -beta, divided by the largest weight in the whole buffer, so the least likely frame has weight 1.

Writers do not know about priorities, and may be other processes. The sampler looks for new frames whenever it draws or
receives priorities: new frames get the largest priority so far, frames being written get none until they are complete.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reap.data.reductions import REDUCTIONS, checked_reduction
from reap.data.samplers.base import EMPTY, Draw, Sampler, unbroken
from reap.data.samplers.seen import Seen, columns_of_writes, drawn_places, places_of_columns, set_valid
from reap.data.samplers.served import Served
from reap.data.samplers.sum_tree import Places, SumTree, Values, as_priorities
from reap.data.storages.base import Storage
from reap.data.storages.bits import Mask
from reap.data.storages.items import checked_device
from reap.errors import CallOrderError, OptionError, SpecMismatch
from reap.keys import Key, plain
from reap.option_values import not_negative, positive, switch

NOT_KEPT = -1
"""The place that some writers return for a frame that they did not keep."""

FIRST_PRIORITY = 1.0
"""The priority of new frames before any other is known."""


class PrioritizedSampler(Sampler):
    """Draws frames in proportion to their priorities, with importance weights that correct for it.

    Samples include `"priority_weight"`, float32 `[B]`, and, under torchrl's older name, `"_weight"`.
    A frame with priority 0 is never drawn if `eps` is 0.

    Args:
        max_capacity: maximum number of frames in the buffer.
        alpha: exponent of the priorities, not negative, a number or a tensor with one element, which is read once; 0 makes
            sampling uniform. Can be changed later, from 0 only before the first draw.
        beta: exponent of the weights, not negative: 0 for none (all are 1), 1 for full correction. Can be
            changed later.
        eps: added to each priority before the exponent.
        dtype: float32 or float64, as in torchrl; sums are always float64.
        reduction: combines several priorities of a frame: `"max"`, `"min"`, `"mean"` or `"median"`.
        max_priority_within_buffer: give new frames the largest priority currently in the buffer, instead of the largest ever;
            finding it takes time proportional to the buffer's size.
        device: None or "cpu", where priorities are kept; index and priority may be on any device.

    Raises:
        OptionError: an invalid argument.

    Example:
        >>> from reap.data.buffers.replay import ReplayBuffer
        >>> buffer = ReplayBuffer(sampler=PrioritizedSampler(1_000, alpha=1.0, beta=1.0, eps=0.0))
        >>> index = buffer.extend(torch.tensor([10, 11, 12]))
        >>> buffer.update_priority(index, torch.tensor([0.0, 1.0, 3.0]))
        >>> sample, info = buffer.sample(2_000, return_info=True)
        >>> sample.unique().tolist(), info["priority_weight"].unique().tolist()
        ([11, 12], [0.3333333432674408, 1.0])
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        device: Any = None,
    ) -> None:
        if device is not None and checked_device(device).type != "cpu":
            raise OptionError(f"device: expected 'cpu', where priorities are kept, got {str(device)!r}; leave it out")
        self.max_capacity = positive(max_capacity, "max_capacity")
        if dtype not in (torch.float32, torch.float64):
            raise OptionError(f"dtype: expected torch.float32 or torch.float64, got {dtype}")
        self.reduction = checked_reduction(reduction)
        self.max_priority_within_buffer = switch(max_priority_within_buffer, "max_priority_within_buffer")
        self.eps = not_negative(eps, "eps")
        self._alpha, self._beta = not_negative(alpha, "alpha"), not_negative(beta, "beta")
        self._priority_key: Key | None = None
        self._buffer = Served()
        self._forget()

    @property
    def max_size(self) -> int:
        """Maximum number of frames in the buffer."""
        return self.max_capacity

    @property
    def device(self) -> torch.device:
        """The device of the priorities: the CPU."""
        return torch.device("cpu")

    @property
    def default_priority(self) -> float:
        """The priority of new frames: the largest so far, or of those in the buffer; 1 if there is none."""
        largest = self._largest
        if self.max_priority_within_buffer and self._tree is not None:
            largest = self._tree.highest or self._first_power
        if not self._exponent or largest == self._first_power:
            return FIRST_PRIORITY
        return max(0.0, largest ** (1 / self._exponent) - self.eps)

    @property
    def alpha(self) -> float:
        """Exponent of the priorities.

        Raises:
            OptionError: set to a negative number, or from 0 to another when priorities were taken already: they are forgotten.
        """
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        value = not_negative(value, "alpha")
        if self._tree is not None and not self._exponent and value:
            raise OptionError("alpha: cannot be changed from 0, where priorities are forgotten; make a new sampler")
        self._alpha = value
        if self._tree is None:
            self._forget()

    @property
    def beta(self) -> float:
        """Exponent of the weights.

        Raises:
            OptionError: set to a negative number.
        """
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta = not_negative(value, "beta")

    # ------------------------------------------------------------------ draws

    def draw(self, storage: Storage, size: int, generator: torch.Generator | None) -> Draw:
        """Choose `size` frames independently; see `Sampler`.

        Raises:
            CallOrderError: there are no complete frames, or all have priority 0.
        """
        tree = self._catch_up(storage)
        return self._weighted(tree, drawn_places(tree, storage, size, generator))

    def redraw(self, draw: Draw, bad: Mask, storage: Storage, generator: torch.Generator | None) -> Draw:
        """Replace frames that were being written; see `Sampler`."""
        tree = self._catch_up(storage)
        places = draw.places.numpy().copy()
        gone = bad | (tree.values[places] == 0)
        places[gone] = drawn_places(tree, storage, int(gone.sum()), generator)
        return self._weighted(tree, places)

    def _weighted(self, tree: SumTree, places: Places) -> Draw:
        weight = torch.from_numpy((tree.values[places] / tree.lowest) ** -self._beta).float()
        return Draw(torch.from_numpy(places), {"priority_weight": weight, "_weight": weight})

    # ------------------------------------------------------------------ priorities

    def serve(self, storage: Storage, lock: AbstractContextManager[Any]) -> None:
        """Note the storage of the buffer that uses this sampler, for `update_priority`; see `Sampler`."""
        self._buffer = Served(storage, lock)

    def update_priority(self, index: Any, priority: Any, storage: Storage | None = None) -> None:
        """Set priorities of frames; `buffer.update_priority` does the same.

        If a frame occurs twice, its last priority counts. Indices of frames that are gone are ignored, and so is -1, which some
        writers return for a frame that they did not keep.

        Args:
            index: their indices, as `extend` and `sample(return_info=True)` give them, `[B]` or `[B, ndim]`.
            priority: a number for all, or one for each, from 0 on.
            storage: holds the frames; that of the buffer that samples with it unless given.

        Raises:
            OptionError: a priority that is negative or not finite, not as many as frames, or a place outside the buffer;
                nothing is changed.
            CallOrderError: nothing was written yet, or no buffer samples with it.
        """
        values = as_priorities(priority)
        with self._buffer.lock:
            held_by = self._buffer.storage if storage is None else storage
            places = held_by.as_places(index)
            if len(values) not in (1, len(places)):
                raise OptionError(f"priority: expected one number, or one for each of {len(places)} frames, got {len(values)}")
            with unbroken(self):
                self._update(places, values.expand(len(places)), held_by)

    def _update(self, places: Tensor, priority: Tensor, storage: Storage) -> None:
        at, values = places.cpu().numpy(), self._powers(priority, "priority")
        size = storage.rows * storage.ring.capacity
        if len(at) and not (at.min() >= NOT_KEPT and at.max() < size):
            outside = at[(at < NOT_KEPT) | (at >= size)]
            raise OptionError(f"update_priority: expected places from 0 to {size - 1}, got {outside[0]}")
        tree = self._catch_up(storage)
        if (held := self._held(at, storage)) is not None:
            at, values = at[held], values[held]
        set_valid(tree, at, values, storage)
        self._largest = max(self._largest, float(values.max(initial=0.0)))

    def repair(self) -> None:
        """Compute the sums of the priorities again; see `Sampler`."""
        if self._tree is not None:
            self._tree = SumTree.of(self._tree.values)

    def replaced(self, places: Tensor, storage: Storage) -> None:
        """Give frames that replaced others the priority of new ones; see `Sampler`."""
        if self._tree is not None:
            tree, at = self._catch_up(storage), places.cpu().numpy()
            at = np.unique(at[at != NOT_KEPT])
            set_valid(tree, at, self._powers_of_new(at, storage), storage)

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Give the frames at these indices the priority of new ones; see `Sampler`."""
        with self._buffer.lock:
            held_by = self._buffer.storage if storage is None else storage
            self.replaced(held_by.as_places(index), held_by)

    def begin_alike(self, storage: Storage, write: Callable[[], Any]) -> Any:
        """Write frames that start with the largest priority so far, whatever priorities the data have.

        Args:
            storage: where they are written.
            write: does so, and returns their indices.
        """
        if storage.is_initialised:
            self._catch_up(storage)
        largest = self._largest
        index = write()
        if storage.is_initialised:
            tree, places = self._catch_up(storage), storage.as_places(index).numpy()
            set_valid(tree, places[places != NOT_KEPT], largest, storage)
            self._largest = largest
        return index

    def read_priorities(self, key: Key) -> None:
        """Use the values under this key, if there are any, as priorities of new frames."""
        self._priority_key = key

    def reduced(self, priority: Tensor, frames: int) -> Tensor:
        """One priority for each frame, `[frames]`, of one or several for each, `[*frames, ...]`.

        Raises:
            SpecMismatch: there are not as many for each frame.
        """
        if priority.numel() % frames:
            raise SpecMismatch(f"priorities: expected one or several for each of {frames} frames, got {list(priority.shape)}")
        return REDUCTIONS[self.reduction](priority.reshape(frames, -1).double())

    def check_priority(self, priority: Tensor) -> None:
        """Raise OptionError for priorities that are negative or not finite."""
        self._powers(priority, "priority")

    def _held(self, places: Places, storage: Storage) -> Any:
        """The mask of places whose frame has not changed since the sampler last looked; None if all are unchanged."""
        oldest, claimed, writing = self._seen
        capacity = storage.ring.capacity
        if claimed - oldest == capacity and not writing and places.min(initial=0) != NOT_KEPT:
            return None
        columns = claimed - 1 - (claimed - 1 - places) % capacity
        return (places != NOT_KEPT) & (columns >= oldest) & ~np.isin(columns, columns_of_writes(writing, oldest, claimed))

    def _powers(self, priority: Tensor, name: str) -> Values:
        """The values of the tree for priorities `[n]`."""
        given: Values = priority.detach().cpu().double().numpy()
        with np.errstate(all="ignore"):
            values = (given + self.eps) ** self._alpha
        bound = sys.float_info.max / self.max_capacity  # so that the sum of all is finite too
        if len(given) and not (given.min() >= 0 and values.max() <= bound):
            wrong = given[~((given >= 0) & (values <= bound))]
            raise OptionError(f"{name}: expected finite numbers from 0 on, got {wrong[0]}; nothing was changed")
        return values

    # ------------------------------------------------------------------ new frames

    def _catch_up(self, storage: Storage) -> SumTree:
        """The tree, updated with all frames written so far."""
        ring = storage.ring
        # In this order: later claims are handled the next time, and all columns published until now can be read.
        oldest, claimed = ring.oldest, ring.claimed
        writing = tuple(write for write in ring.under_way() if write[0] < claimed)
        if oldest > max(self._seen.oldest, claimed - ring.capacity):  # it was emptied, maybe in another process
            self._forget()
        if self._tree is None:
            self._tree = self._new_tree(storage)
        known_of = self._known_of = self._known_of or storage.identity
        if known_of != storage.identity or self._tree.size != storage.rows * ring.capacity:
            raise OptionError("PrioritizedSampler: has the priorities of another buffer; call empty() on it, or make a new one")
        if self._exponent != self._alpha:
            self._change_exponent(self._tree)
        seen = Seen(max(oldest, claimed - ring.capacity), claimed, writing)
        if seen != self._seen:
            self._take_in(self._tree, storage, seen)
        return self._tree

    def _new_tree(self, storage: Storage) -> SumTree:
        if not storage.is_initialised:
            raise CallOrderError(EMPTY)
        size = storage.rows * storage.ring.capacity
        if size > self.max_capacity and storage.max_size > self.max_capacity:
            raise OptionError(
                f"max_capacity={self.max_capacity}: expected room for all frames of the buffer, which holds {size}; "
                f"use PrioritizedSampler({size}, ...)"
            )
        return SumTree(size)

    def _take_in(self, tree: SumTree, storage: Storage, seen: Seen) -> None:
        """Give new frames their priority, and none to those that are being written."""
        oldest, claimed, writing = seen
        before = (self._seen.claimed, claimed - self._seen.claimed)
        hidden = columns_of_writes(writing, oldest, claimed)
        changed = columns_of_writes((before, *self._seen.writing), oldest, claimed)
        places = places_of_columns(changed[~np.isin(changed, hidden)], storage)
        tree.set(places_of_columns(hidden, storage), 0.0)
        if self.max_priority_within_buffer:
            tree.set(places, 0.0)
            self._largest = tree.highest or self._first_power
        set_valid(tree, places, self._powers_of_new(places, storage), storage)
        self._seen = seen

    def _powers_of_new(self, places: Places, storage: Storage) -> Values | float:
        """The values of the tree for new frames: one number each, or one for all."""
        key = self._priority_key
        if key is None or key not in storage.keys or not len(places):
            return self._largest
        stored = storage.leaf(key)
        priority = stored[torch.from_numpy(places).to(stored.device)]
        values = self._powers(self.reduced(priority, len(places)), f"{plain(key)!r} in the buffer")
        self._largest = max(self._largest, float(values.max()))
        return values

    def _change_exponent(self, tree: SumTree) -> None:
        power = self._alpha / self._exponent
        tree.set(np.arange(tree.size), np.where(tree.values > 0, tree.values**power, 0.0))
        self._largest, self._exponent = self._largest**power, self._alpha

    @property
    def _first_power(self) -> float:
        return (FIRST_PRIORITY + self.eps) ** self._alpha

    # ------------------------------------------------------------------ state

    def empty(self) -> None:
        """Forget all frames and their priorities."""
        self._forget()

    def _forget(self) -> None:
        """Forget priorities only, not a subclass's information about frames."""
        self._tree: SumTree | None = None
        self._known_of = ""
        """The identity of the storage of these frames; empty before the first use."""
        self._seen = Seen()
        self._exponent, self._largest = self._alpha, self._first_power

    def state_dict(self) -> dict[str, Any]:
        """The state of the sampler, without the contents of the storage."""
        return {
            "alpha": self._alpha,
            "beta": self._beta,
            "eps": self.eps,
            "exponent": self._exponent,
            "powers": None if self._tree is None else torch.from_numpy(self._tree.values.copy()),
            "largest": self._largest,
            "oldest": self._seen.oldest,
            "claimed": self._seen.claimed,
            "writing": [list(write) for write in self._seen.writing],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict` of a sampler of a buffer with the same capacity and contents."""
        powers, self._known_of = state["powers"], ""
        self._tree = None if powers is None else SumTree.of(powers.double().numpy())
        self._alpha, self._beta, self.eps = state["alpha"], state["beta"], state["eps"]
        self._exponent, self._largest = state["exponent"], state["largest"]
        writing = tuple((start, count) for start, count in state["writing"])
        self._seen = Seen(state["oldest"], state["claimed"], writing)

    def resume(self, storage: Storage) -> None:
        """Use the loaded priorities for this storage; see `Sampler`."""
        self._known_of = storage.identity

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self._alpha}, beta={self._beta}, eps={self.eps}, reduction={self.reduction!r})"
