"""Consistent samples of a buffer that is being written: frames are taken, then checked.

begin_reading -> draw -> take -> untouched? that is it
                  ^                  | some are in columns that are, or were, being written
                  '-- draw these ----'  the others are kept: they were complete when taken
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
    """Draw places and take their data, without frames that were being written.

    Args:
        storage: holds the frames.
        sampler: chooses places.
        size: number of frames.
        generator: the source of random numbers.
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
    """Copy a sample to page-locked memory; lists of objects are returned unchanged."""
    if holds_tensors_only(data):
        return tree_of(data, 0).each(lambda leaf: leaf.pin_memory(), 0).joined()
    return data if isinstance(data, list) else data.pin_memory()


def spread(value: Any, data: Any) -> Any:
    """Information about each item of a sample `[B, *item]`, as an entry of it: `[B, ...]` becomes `[B, *item, ...]`."""
    inner = data.ndim - 1
    if inner <= 0:
        return value
    return value.reshape(len(value), *[1] * inner, *value.shape[1:]).expand(*data.shape, *value.shape[1:])


def _made_whole(
    storage: Storage, sampler: Sampler, draw: Draw, taken: Any, reading: Reading, generator: torch.Generator | None
) -> tuple[Draw, Any]:
    """Take frames until all are complete; complete ones are not taken again.

    Args:
        storage: holds the frames.
        sampler: chooses places.
        draw: the first choice.
        taken: the values taken from there.
        reading: the state of the ring before that.
        generator: the source of random numbers.
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
    """The values taken from these places, taken again if frames were edited in place at the same time."""
    if not storage.ring.is_edited(reading):
        return taken
    with storage.ring.control.lock:
        return storage.take(places)
