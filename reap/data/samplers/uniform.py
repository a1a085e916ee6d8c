"""Samplers to which all frames are alike: `RandomSampler` and `SamplerWithoutReplacement`."""

from __future__ import annotations

import torch
from torch import Tensor

from reap.data.samplers.base import Draw, Sampler, refuse_if_hidden, uniform_places
from reap.data.storage import Storage


class RandomSampler(Sampler):
    """Each frame as likely as any other, every time."""

    def draw(self, storage: Storage, size: int, generator: torch.Generator | None) -> Draw:
        """Choose `size` frames; see `Sampler`."""
        return Draw(uniform_places(storage, size, generator))

    def redraw(self, draw: Draw, bad: Tensor, storage: Storage, generator: torch.Generator | None) -> Draw:
        """Choose others for those that were being written; see `Sampler`."""
        refuse_if_hidden(storage, storage.ring.begin_reading())
        places = draw.places.clone()
        places[bad] = uniform_places(storage, int(bad.sum()), generator)
        return Draw(places)
