"""How a sample is taken from a buffer that others write meanwhile: taken, and looked at again.

begin_reading -> draw -> take -> untouched? that is it
                  ^                  | some lie where somebody was writing, or has begun since
                  '-- draw these ----'  the others are kept: they were whole when they were taken
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reap.data.samplers.base import Draw, Sampler, refuse_if_hidden, unbroken
from reap.data.storages.base import Storage
from reap.data.storages.ring.reading import Reading
from reap.data.storages.trees import holds_tensors_only, tree_of


def take_sample(storage: Storage, sampler: Sampler, size: int, generator: torch.Generator | None) -> tuple[Draw, Any]:
    """What a sampler chooses, and the data there: no frame of them was being written.

    Args:
        storage: what holds the frames.
        sampler: what chooses them.
        size: how many.
        generator: where the random numbers come from.
    """
    ring = storage.ring
    reading = ring.begin_reading()
    with unbroken(sampler):
        draw = sampler.draw(storage, size, generator)
        taken = storage.take(draw.places)
        if not ring.is_untouched(reading):
            draw, taken = _made_whole(storage, sampler, draw, taken, reading, generator)
    return draw, storage.built(taken, len(draw.places), partial(sampler.mark, draw, storage=storage))


def pinned(data: Any) -> Any:
    """A sample in page-locked memory; a list of objects as it is."""
    if holds_tensors_only(data):
        return tree_of(data, 0).each(lambda leaf: leaf.pin_memory(), 0).joined()
    return data if isinstance(data, list) else data.pin_memory()


def spread(value: Any, data: Any) -> Any:
    """What is known of each item of a sample `[B, *item]`, as an entry of it: `[B, ...]` becomes `[B, *item, ...]`."""
    behind = data.ndim - 1
    if behind <= 0:
        return value
    return value.reshape(len(value), *[1] * behind, *value.shape[1:]).expand(*data.shape, *value.shape[1:])


def _made_whole(
    storage: Storage, sampler: Sampler, draw: Draw, taken: Any, reading: Reading, generator: torch.Generator | None
) -> tuple[Draw, Any]:
    """Take until all is whole; what was so once is not taken again.

    Args:
        storage: what holds the frames.
        sampler: what chooses them.
        draw: what it chose first.
        taken: what was taken from there.
        reading: how far the ring was before that.
        generator: where the random numbers come from.
    """
    ring = storage.ring
    taken, at = _checked(storage, draw.places, taken, reading), draw.places.numpy()
    wanted = np.ones(len(at), np.bool_)
    while (bad := wanted & ring.touched(at % ring.capacity, reading)).any():
        refuse_if_hidden(storage, reading)
        reading, before = ring.begin_reading(), at
        draw = sampler.redraw(draw, bad, storage, generator)
        at = draw.places.numpy()
        if len(at) == len(before):
            wanted = bad | (at != before)
            numbers = wanted.nonzero()[0]
            places = torch.from_numpy(at[numbers])
            storage.merge(taken, numbers, _checked(storage, places, storage.take(places), reading))
        else:
            wanted = np.ones(len(at), np.bool_)
            taken = _checked(storage, draw.places, storage.take(draw.places), reading)
    return draw, taken


def _checked(storage: Storage, places: Tensor, taken: Any, reading: Reading) -> Any:
    """What was taken from these places, taken anew if frames were edited in place meanwhile."""
    if not storage.ring.is_edited(reading):
        return taken
    with storage.ring.control.lock:
        return storage.take(places)
