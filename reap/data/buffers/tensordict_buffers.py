"""Replay buffers whose samples have the index of each frame, and buffers that sample by priority.

TensorDictReplayBuffer              samples are TensorDicts with "index" and the sampler's information about each frame
PrioritizedReplayBuffer             a ReplayBuffer with a PrioritizedSampler
TensorDictPrioritizedReplayBuffer   both
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_tensorclass
from torch import Tensor

from reap.data.buffers.replay import Index, ReplayBuffer
from reap.data.consistent_sample import spread
from reap.data.samplers.base import Sampler
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.storages.items import Items
from reap.data.storages.lists import ListStorage
from reap.data.storages.trees import Tree, holds_tensors_only, tree_of
from reap.data.writers import TensorDictRoundRobinWriter
from reap.errors import OptionError, SpecMismatch
from reap.keys import NestedKey, as_key, plain
from reap.option_values import switch


class TensorDictReplayBuffer(ReplayBuffer):
    """A buffer of TensorDicts whose samples have `"index"` and the sampler's information about each frame.

    With a `PrioritizedSampler`, frames written with a priority under `priority_key` start with it, whichever process writes
    them; others start with the largest priority so far.

    Args:
        priority_key: the key of a frame's priority: one number, or several that the sampler's `reduction` combines.
        writer: decides where new frames go; a `TensorDictRoundRobinWriter` unless given.
        options: other options of a `ReplayBuffer`.

    Raises:
        OptionError: an invalid argument.

    Example:
        >>> from tensordict import TensorDict
        >>> buffer = TensorDictReplayBuffer(batch_size=2)
        >>> index = buffer.extend(TensorDict({"a": torch.arange(3)}, [3]))
        >>> sorted(buffer.sample().keys())
        ['a', 'index']
    """

    def __init__(self, *, priority_key: NestedKey = "td_error", writer: Any = None, **options: Any) -> None:
        self._priority_key = as_key(priority_key)
        super().__init__(writer=TensorDictRoundRobinWriter if writer is None else writer, **options)

    def _build(self, **options: Any) -> None:
        super()._build(**options)
        self._sampler.read_priorities(self._priority_key)

    @property
    def priority_key(self) -> NestedKey:
        """The key of a frame's priority."""
        return plain(self._priority_key)

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Choose frames with another sampler from now on. Returns the old one."""
        before = super().set_sampler(sampler)
        self._sampler.read_priorities(self._priority_key)
        return before

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Index:
        """Write several items along the time dimension; see `ReplayBuffer.extend`.

        Args:
            data: TensorDicts, or dicts that make such.
            update_priority: False gives them the largest priority so far, whatever is under `priority_key`.
        """
        is_alike = update_priority is not None and not switch(update_priority, "update_priority")
        if is_alike and isinstance(self._sampler, PrioritizedSampler):
            with self._lock:
                return self._sampler.begin_alike(self._storage, lambda: self._extend(data))
        return self._extend(data)

    def sample(self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None) -> Any:
        """A sample with `"index"` and the sampler's information about each frame; see `ReplayBuffer.sample`.

        Args:
            batch_size: number of frames; the buffer's default if None.
            return_info: also return a dictionary of the information.
            include_info: False omits the information from the sample.
        """
        gives_info = switch(return_info, "return_info")
        leaves_out = include_info is not None and not switch(include_info, "include_info")
        data, info = super().sample(batch_size, return_info=True)
        if leaves_out and isinstance(data, TensorDictBase):
            data = data.exclude(*info)
        return (data, info) if gives_info else data

    def update_tensordict_priority(self, data: TensorDictBase | list[TensorDictBase]) -> None:
        """Set the priorities of frames to the values under `priority_key`; only samplers with priorities use them.

        If items are trajectories `[T]`, the sampler's `reduction` combines the priorities of their frames.

        Args:
            data: a sample `[B]` (of trajectories `[B, T]`, or a list of them), or part of one, of any shape; with `"index"`.

        Raises:
            SpecMismatch: one of the two keys is missing, or there are not as many priorities as frames.
            OptionError: a priority that is negative or not finite; nothing is changed then.
        """
        if (items := _items_of_several_shapes(data)) is not None:
            for item in items:
                self.update_tensordict_priority(item)
            return
        if not isinstance(self._sampler, PrioritizedSampler):
            return
        index, priority = self._entry(data, "index"), self._entry(data, self.priority_key)
        if index.numel():
            self.update_priority(*by_item(self, index, priority))

    def _entry(self, data: TensorDictBase, key: NestedKey) -> Tensor:
        found = data.get(key, None)
        if not isinstance(found, Tensor):
            raise SpecMismatch(
                f"update_tensordict_priority: expected a sample of this buffer with 'index' and {self.priority_key!r}, found "
                f"nothing under {key!r}; without an index, call update_priority(index, priority) with the result of extend"
            )
        return found

    def _prepared(self, data: Any) -> Any:
        written = super()._prepared(_as_tensordict(data))
        return None if written is None else self._checked(written, self._storage.ndim)

    def _edited(self, data: Any, dims: int) -> Any:
        return self._checked(super()._edited(_as_tensordict(data), dims), dims)

    def _checked(self, written: Any, dims: int) -> Any:
        """The data `[*batch, *item]` to write, if they fit this buffer."""
        written = _as_tensordict(written)
        is_item = is_tensorclass(written) and isinstance(self._storage, ListStorage)
        if not isinstance(written, TensorDictBase | Items) and not is_item:
            raise SpecMismatch(
                f"{type(self).__name__}: expected a TensorDict, got {type(written).__name__}; a ReplayBuffer holds other data"
            )
        if isinstance(self._sampler, PrioritizedSampler):
            alone = [written] if isinstance(written, TensorDictBase) else [item.unsqueeze(0) for item in _tensordicts(written)]
            for data in alone:
                priority = data.get(self.priority_key, None)
                if priority is not None and priority.numel():
                    frames = math.prod(data.shape[:dims])
                    self._sampler.check_priority(self._sampler.reduced(priority, frames))
        return written

    def _write(self, data: Any) -> Index:
        index = super()._write(data)
        if not self._storage.keys:
            self._take_priorities(index)
        return index

    def __setitem__(self, index: Any, data: Any) -> None:
        """Overwrite frames; see `ReplayBuffer.__setitem__`."""
        super().__setitem__(index, data)
        if not self._storage.keys:
            self._take_priorities(self._storage.places_at(index).reshape(-1))

    def _take_priorities(self, places: Tensor) -> None:
        """Pass on the priorities with which items of a list were written, which samplers cannot find there."""
        if isinstance(self._sampler, PrioritizedSampler):
            kept = places[places >= 0]
            for place, item in zip(kept, self._storage.take(kept), strict=True):
                priority = item.get(self.priority_key, None) if isinstance(item, TensorDictBase) else None
                if priority is not None and priority.numel():
                    self.update_priority(place, self._sampler.reduced(priority, 1))

    def _noted(self, data: Any, info: Mapping[str, Any]) -> Any:
        if (items := _items_of_several_shapes(data)) is not None:  # which are the buffer's own
            noted = [self._noted_alone(item, number, info) for number, item in enumerate(items)]
            return noted if isinstance(data, list) else LazyStackedTensorDict(*noted, stack_dim=data.stack_dim)
        if isinstance(data, TensorDictBase):
            for key, value in info.items():
                data.set(key, spread(value, data))
        return data

    def _noted_alone(self, item: Any, number: int, info: Mapping[str, Any]) -> Any:
        if not isinstance(item, TensorDictBase):
            return item
        own = {key: value[number] for key, value in info.items()}
        return item.copy().update({key: value.expand(*item.shape, *value.shape) for key, value in own.items()})


def _items_of_several_shapes(data: Any) -> list[Any] | None:
    """The items of a sample that is a list, or a lazy stack of trajectories of several lengths; None for other samples."""
    if isinstance(data, LazyStackedTensorDict) and -1 in data.batch_size:
        return data.tensordicts
    return data if isinstance(data, list) else None


def _tensordicts(items: Any) -> list[TensorDictBase]:
    return [item for item in items if isinstance(item, TensorDictBase)]


def by_item(buffer: ReplayBuffer, index: Tensor, priority: Tensor) -> tuple[Tensor, Tensor]:
    """The items of a prioritized buffer, and one priority for each.

    Args:
        buffer: it, with a `PrioritizedSampler`.
        index: the item of each frame, `[*batch]`, or `[*batch, ndim]` for a storage of several dimensions.
        priority: one or several for each frame, `[*batch, ...]`, or for each item. Those of one item are reduced together.

    Raises:
        SpecMismatch: the number of priorities differs between frames.
    """
    reduced: Any = buffer.sampler.reduced  # pyright: ignore[reportAttributeAccessIssue]  of a PrioritizedSampler
    storage = buffer.storage
    frames = index.numel() // storage.ndim
    flat = index.reshape(frames, -1).squeeze(-1)
    if not storage.item_dims:
        return flat, reduced(priority, frames)
    shape = index.shape if storage.ndim == 1 else index.shape[:-1]
    items = flat.unflatten(0, (-1, math.prod(shape[-storage.item_dims :])))
    if bool((items == items[:, :1]).all()):
        return items[:, 0], reduced(priority, len(items))
    reduced(priority, frames)  # raises where there are not as many for each
    places, owners = flat.unique(dim=0, return_inverse=True)
    values = priority.reshape(frames, -1)
    return places, torch.cat([reduced(values[owners == number], 1) for number in range(len(places))])


def _as_tensordict(data: Any) -> Any:
    """Dicts as a TensorDict, those in a list of items too.

    Raises:
        SpecMismatch: tuples and lists.
    """
    if isinstance(data, Items):
        return Items([tree_of(item, 0).as_tensordict() if holds_tensors_only(item) else item for item in data])
    return data.as_tensordict() if isinstance(data, Tree) else data


class PrioritizedReplayBuffer(ReplayBuffer):
    """A buffer that samples frames in proportion to their priorities; see `PrioritizedSampler`.

    Args:
        alpha: exponent of the priorities.
        beta: exponent of the weights.
        eps: added to each priority before the exponent.
        dtype: float32 or float64, as in torchrl.
        sampler: must be None: the buffer makes its own.
        options: other options of a `ReplayBuffer`.

    Raises:
        OptionError: an invalid argument.

    Example:
        >>> buffer = PrioritizedReplayBuffer(alpha=0.7, beta=0.9, batch_size=4)
        >>> index = buffer.extend(torch.arange(10))
        >>> sample, info = buffer.sample(return_info=True)
        >>> buffer.update_priority(info["index"], torch.tensor([0.5, 1.0, 2.0, 0.1]))
        >>> info["priority_weight"]
        tensor([1., 1., 1., 1.])
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        sampler: None = None,
        **options: Any,
    ) -> None:
        if sampler is not None:
            raise OptionError(f"PrioritizedReplayBuffer: makes its own sampler, got {sampler!r}; use ReplayBuffer(sampler=...)")
        super().__init__(sampler=lambda: PrioritizedSampler(self._storage.max_size, alpha, beta, eps, dtype), **options)


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` that samples frames in proportion to their priorities; see `PrioritizedSampler`.

    Args:
        alpha: exponent of the priorities.
        beta: exponent of the weights.
        priority_key: the key of a frame's priority.
        eps: added to each priority before the exponent.
        reduction: combines several priorities of a frame: `"max"`, `"min"`, `"mean"` or `"median"`.
        options: options of a `ReplayBuffer`.

    Raises:
        OptionError: an invalid argument.

    Example:
        >>> from tensordict import TensorDict
        >>> buffer = TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.9, batch_size=4)
        >>> index = buffer.extend(TensorDict({"a": torch.arange(10)}, [10]))
        >>> sample = buffer.sample()
        >>> sample["td_error"] = sample["a"] / 10
        >>> buffer.update_tensordict_priority(sample)
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        priority_key: NestedKey = "td_error",
        eps: float = 1e-8,
        reduction: str = "max",
        **options: Any,
    ) -> None:
        def sampler() -> Sampler:
            return PrioritizedSampler(self._storage.max_size, alpha, beta, eps, reduction=reduction)

        super().__init__(priority_key=priority_key, sampler=sampler, **options)
