"""`PrioritizedSampler`: draws frames in proportion to their priorities.

Schaul, Quan, Antonoglou, Silver: "Prioritized Experience Replay", ICLR 2016 (arXiv:1511.05952), the proportional variant:

    P(i) = q_i / Σ q                q_i = (priority_i + eps) ** alpha, the values of the tree
    weight_i = (q_i / min q) ** -beta

The weights are (N P(i)) ** -beta, divided by the largest weight in the whole buffer, so the least likely frame has weight 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from reap.data.reductions import checked_reduction
from reap.data.samplers.base import Draw, Sampler, unbroken
from reap.data.samplers.frame_priorities import NOT_KEPT, FramePriorities, PriorityRule
from reap.data.samplers.seen import drawn_places, set_valid
from reap.data.samplers.served import Served
from reap.data.samplers.sum_tree import Places, SumTree, as_priorities
from reap.data.storages.base import Storage
from reap.data.storages.bits import Mask
from reap.data.storages.items import checked_device
from reap.errors import OptionError
from reap.keys import Key
from reap.option_values import not_negative, positive, switch


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
        capacity = positive(max_capacity, "max_capacity")
        if dtype not in (torch.float32, torch.float64):
            raise OptionError(f"dtype: expected torch.float32 or torch.float64, got {dtype}")
        self._rule = PriorityRule(
            eps=not_negative(eps, "eps"),
            alpha=not_negative(alpha, "alpha"),
            max_capacity=capacity,
            reduction=checked_reduction(reduction),
            within_buffer=switch(max_priority_within_buffer, "max_priority_within_buffer"),
        )
        self._beta = not_negative(beta, "beta")
        self._frames = FramePriorities(self._rule)
        self._buffer = Served()

    @property
    def max_capacity(self) -> int:
        """Maximum number of frames in the buffer."""
        return self._rule.max_capacity

    @property
    def max_size(self) -> int:
        """The same as `max_capacity`."""
        return self._rule.max_capacity

    @property
    def device(self) -> torch.device:
        """The device of the priorities: the CPU."""
        return torch.device("cpu")

    @property
    def default_priority(self) -> float:
        """The priority of new frames: the largest so far, or of those in the buffer; 1 if there is none."""
        return self._frames.of_new

    @property
    def reduction(self) -> str:
        """How several priorities of a frame are combined."""
        return self._rule.reduction

    @reduction.setter
    def reduction(self, value: str) -> None:
        self._rule.reduction = checked_reduction(value)

    @property
    def max_priority_within_buffer(self) -> bool:
        """Whether new frames get the largest priority in the buffer, instead of the largest ever."""
        return self._rule.within_buffer

    @max_priority_within_buffer.setter
    def max_priority_within_buffer(self, value: bool) -> None:
        self._rule.within_buffer = switch(value, "max_priority_within_buffer")

    @property
    def eps(self) -> float:
        """Added to each priority before the exponent.

        Raises:
            OptionError: set to a negative number.
        """
        return self._rule.eps

    @eps.setter
    def eps(self, value: float) -> None:
        self._rule.eps = not_negative(value, "eps")

    @property
    def alpha(self) -> float:
        """Exponent of the priorities.

        Raises:
            OptionError: set to a negative number, or from 0 to another when priorities were taken already: they are forgotten.
        """
        return self._rule.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._frames.change_alpha(not_negative(value, "alpha"))

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
        tree = self._frames.caught_up(storage)
        return self._weighted(tree, drawn_places(tree, storage, size, generator))

    def redraw(self, draw: Draw, bad: Mask, storage: Storage, generator: torch.Generator | None) -> Draw:
        """Replace frames that were being written; see `Sampler`."""
        tree = self._frames.caught_up(storage)
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
                powers = self._rule.powers(values.expand(len(places)), "priority")
                self._frames.update(places.cpu().numpy(), powers, held_by)

    def repair(self) -> None:
        """Compute the sums of the priorities again; see `Sampler`."""
        self._frames.repair()

    def replaced(self, places: Tensor, storage: Storage) -> None:
        """Give frames that replaced others the priority of new ones; see `Sampler`."""
        self._frames.renew(places, storage)

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
            self._frames.caught_up(storage)
        largest = self._frames.largest
        index = write()
        if storage.is_initialised:
            tree, places = self._frames.caught_up(storage), storage.as_places(index).numpy()
            set_valid(tree, places[places != NOT_KEPT], largest, storage)
            self._frames.largest = largest
        return index

    def read_priorities(self, key: Key) -> None:
        """Use the values under this key, if there are any, as priorities of new frames."""
        self._rule.key = key

    def reduced(self, priority: Tensor, frames: int) -> Tensor:
        """One priority for each frame, `[frames]`, of one or several for each, `[*frames, ...]`.

        Raises:
            SpecMismatch: there are not as many for each frame.
        """
        return self._rule.reduced(priority, frames)

    def check_priority(self, priority: Tensor) -> None:
        """Raise OptionError for priorities that are negative or not finite."""
        self._rule.powers(priority, "priority")

    # ------------------------------------------------------------------ state

    def empty(self) -> None:
        """Forget all frames and their priorities."""
        self._frames.forget()

    def state_dict(self) -> dict[str, Any]:
        """The state of the sampler, without the contents of the storage."""
        return {"alpha": self.alpha, "beta": self._beta, "eps": self.eps, **self._frames.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict` of a sampler of a buffer with the same capacity and contents."""
        self._rule.alpha, self._beta, self._rule.eps = state["alpha"], state["beta"], state["eps"]
        self._frames.restore(state)

    def resume(self, storage: Storage) -> None:
        """Use the loaded priorities for this storage; see `Sampler`."""
        self._frames.resume(storage)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha}, beta={self._beta}, eps={self.eps}, reduction={self.reduction!r})"
