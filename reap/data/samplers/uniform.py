"""Uniform samplers: `RandomSampler` and `SamplerWithoutReplacement`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reap.data.samplers.base import Draw, Sampler, uniform_places, valid_in
from reap.data.storages.base import Storage
from reap.data.storages.bits import Mask
from reap.data.storages.ring.ring import Ring
from reap.errors import CallOrderError
from reap.option_values import switch


class RandomSampler(Sampler):
    """Samples frames uniformly, with replacement."""

    def draw(self, storage: Storage, size: int, generator: torch.Generator | None) -> Draw:
        """Choose `size` frames; see `Sampler`."""
        return Draw(uniform_places(storage, size, generator))

    def redraw(self, draw: Draw, bad: Mask, storage: Storage, generator: torch.Generator | None) -> Draw:
        """Replace frames that were being written; see `Sampler`."""
        places = draw.places.numpy().copy()
        at = bad.nonzero()[0]
        places[at] = uniform_places(storage, len(at), generator).numpy()
        return Draw(torch.from_numpy(places))


class SamplerWithoutReplacement(Sampler):
    """Samples each frame once before any is sampled again.

    An epoch covers the valid frames in the buffer when it starts. Frames that are written later, or are being written then,
    are sampled in the next one; frames that are overwritten before they are sampled are skipped. A copy of the sampler
    continues in mid-epoch; with the storage of another buffer a new one starts. Iterating over a buffer ends after the last
    sample of an epoch; if the rest of an epoch is overwritten first, the next one starts without ending the iteration. With
    `prefetch`, samples that were made ahead and dropped, because the sample size or a part of the buffer changed, are not
    repeated in the same epoch.

    Args:
        drop_last: drop frames that do not fill a sample at the end of an epoch; otherwise its last sample is short.
        shuffle: in random order; otherwise row by row, in the order in which the frames were written.

    Example:
        >>> from reap.data.buffers.replay import ReplayBuffer
        >>> buffer = ReplayBuffer(sampler=SamplerWithoutReplacement(shuffle=False), batch_size=4)
        >>> index = buffer.extend(torch.arange(10))
        >>> [sample.tolist() for sample in buffer]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        self.drop_last, self.shuffle = switch(drop_last, "drop_last"), switch(shuffle, "shuffle")
        self.empty()

    def empty(self) -> None:
        """Forget the epoch, because all frames were removed."""
        self._waiting = torch.empty(0, dtype=torch.int64)
        """Places that have not been sampled, in sampling order."""
        self._known_of = ""
        """The identity of the storage of these places; empty before the first use."""
        self._oldest = self._end = 0
        self._ran_out = False

    @property
    def needs_size(self) -> bool:
        """Whether the size of a sample must be known before the first one; see `Sampler`."""
        return self.drop_last

    @property
    def ran_out(self) -> bool:
        """Whether the last draw was the last of its epoch."""
        return self._ran_out

    def draw(self, storage: Storage, size: int, generator: torch.Generator | None) -> Draw:
        """Choose the next `size` frames, or those that are left; see `Sampler`.

        Raises:
            CallOrderError: there are no complete frames, or with `drop_last` fewer than `size`.
        """
        self._leave_out_overwritten(storage)
        if self._is_over(size):
            self._begin(storage, size, generator)
        return self._next(size)

    def redraw(self, draw: Draw, bad: Mask, storage: Storage, generator: torch.Generator | None) -> Draw:
        """Replace overwritten frames by the next ones; see `Sampler`."""
        ring, size = storage.ring, len(bad)
        kept = draw.places[self._columns(draw.places, ring) >= ring.oldest]
        self._waiting = torch.cat([kept, self._waiting])
        return self.draw(storage, size, generator)

    def replaced(self, places: Tensor, storage: Storage) -> None:
        """Drop frames that are no longer valid; see `Sampler`."""
        self._waiting = valid_in(storage, self._waiting)

    def _next(self, size: int) -> Draw:
        places, self._waiting = self._waiting[:size], self._waiting[size:]
        self._ran_out = self._is_over(size)
        return Draw(places)

    def _is_over(self, size: int) -> bool:
        return len(self._waiting) < (size if self.drop_last else 1)

    def _begin(self, storage: Storage, size: int, generator: torch.Generator | None) -> None:
        ring = storage.ring
        # In this order: later claims are not in the epoch, nor are the frames that they overwrite.
        end = ring.claimed
        oldest = ring.oldest
        columns = torch.arange(oldest, max(oldest, end))
        columns = columns[torch.from_numpy(ring.filled(oldest, max(oldest, end)))]
        places = (torch.arange(storage.rows).unsqueeze(1) * ring.capacity + columns % ring.capacity).view(-1)
        places = valid_in(storage, places)
        wanted = size if self.drop_last else 1
        if len(places) < wanted:
            raise CallOrderError(
                f"replay buffer: expected to find {wanted} frames at least whose writing has ended, found {len(places)}; "
                "write to it first"
            )
        self._oldest, self._end = oldest, end
        self._waiting = places[torch.randperm(len(places), generator=generator)] if self.shuffle else places

    def _leave_out_overwritten(self, storage: Storage) -> None:
        known_of, ring = self._known_of or storage.identity, storage.ring
        if known_of != storage.identity:
            self.empty()
        self._known_of, oldest = storage.identity, ring.oldest
        if oldest > self._oldest:
            self._oldest = oldest
            self._waiting = self._waiting[self._columns(self._waiting, ring) >= oldest]

    def _columns(self, places: Tensor, ring: Ring) -> Tensor:
        """The columns at these places when the epoch began."""
        return self._end - 1 - (self._end - 1 - places) % ring.capacity

    def state_dict(self) -> dict[str, Any]:
        """The state of the sampler, without the contents of the storage."""
        return {"waiting": self._waiting.clone(), "oldest": self._oldest, "end": self._end, "ran_out": self._ran_out}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`."""
        self._waiting = state["waiting"].clone()
        self._oldest, self._end, self._ran_out = state["oldest"], state["end"], state["ran_out"]
        self._known_of = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(drop_last={self.drop_last}, shuffle={self.shuffle})"
