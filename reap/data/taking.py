"""How a sample is taken from a buffer that others write meanwhile: taken, and looked at again.

begin_reading -> draw -> take -> untouched? that is it
                  ^                  | some lie where somebody was writing, or has begun since
                  '-- draw these ----'  the others are kept: they were whole when they were taken
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from reap.data.samplers.base import Draw, Sampler, refuse_if_hidden
from reap.data.storages.base import Storage
from reap.data.storages.ring import Reading


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
    draw = sampler.draw(storage, size, generator)
    data = storage.get(draw.places, partial(sampler.mark, draw))
    if ring.is_untouched(reading):
        return draw, data
    draw, data = _take_in_parts(storage, sampler, draw, reading, generator)
    return draw, storage.marked(data, partial(sampler.mark, draw))


def _take_in_parts(
    storage: Storage, sampler: Sampler, draw: Draw, reading: Reading, generator: torch.Generator | None
) -> tuple[Draw, Any]:
    """Take until all is whole, and what was chosen; what was so once is not taken again.

    Args:
        storage: what holds the frames.
        sampler: what chooses them.
        draw: what it chose first.
        reading: how far the ring was before that.
        generator: where the random numbers come from.
    """
    ring, count = storage.ring, len(draw.places)
    data, wanted = _taken(storage, draw.places, reading), torch.ones(count, dtype=torch.bool)
    while (bad := wanted & ring.touched(draw.places % ring.capacity, reading)).any():
        refuse_if_hidden(storage, reading)
        reading, before = ring.begin_reading(), draw.places
        draw = sampler.redraw(draw, bad, storage, generator)
        if len(draw.places) == count:
            wanted = bad | (draw.places != before)
            storage.merge(data, wanted, _taken(storage, draw.places[wanted], reading))
        else:
            count = len(draw.places)
            data, wanted = _taken(storage, draw.places, reading), torch.ones(count, dtype=torch.bool)
    return draw, data


def _taken(storage: Storage, places: Tensor, reading: Reading) -> Any:
    """What lies at these places; nothing is edited in place meanwhile."""
    data = storage.get(places)
    if not storage.ring.is_edited(reading):
        return data
    with storage.ring.control.lock:
        return storage.get(places)
