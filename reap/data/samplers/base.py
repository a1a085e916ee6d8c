"""`Sampler` chooses places of a storage; `Draw` is its choice."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from reap.data.peers import conversion, count_as_torchrls
from reap.data.saving.part import SavedPart
from reap.data.storages.base import Storage
from reap.data.storages.bits import Mask
from reap.data.storages.items import Leaves
from reap.data.storages.ring.reading import Reading
from reap.errors import CallOrderError, OptionError, ReapError, shown
from reap.keys import Key
from reap.option_values import positive

NO_INFO: Mapping[str, Tensor] = {}


EMPTY = "Cannot sample from an empty storage: expected frames, found it empty; write to it first"

HIDDEN = "replay buffer: expected frames to sample from, found none whose writing has ended"

NONE_VALID = "replay buffer: expected frames to sample from, found none whose ('collector', 'mask') is True"

ATTEMPTS = 8
"""Number of draws from all frames before suitable ones are searched for."""


class Draw(NamedTuple):
    """The places chosen for a sample.

    Attributes:
        places: `[B]`, int64.
        info: information about each, by name; `[B, ...]`.
        note: the sampler's information for `mark`.
    """

    places: Tensor
    info: Mapping[str, Tensor] = NO_INFO
    note: Any = None


class Sampler(SavedPart):
    """Chooses the frames of samples."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """A sampler that torchrl's checks accept."""
        count_as_torchrls(Sampler, "Sampler")
        return super().__new__(cls)

    def sample(self, storage: Any, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Choose frames of a storage, without a buffer.

        Args:
            storage: holds the frames.
            batch_size: number of frames.

        Returns:
            Their indices, `[B]`, or a tuple with a tensor for each dimension, and what the sampler knows about each, by name.

        Raises:
            OptionError: not a storage of reap.
            CallOrderError: there are not enough frames.
        """
        if not isinstance(storage, Storage):
            raise OptionError(
                f"sampler: expected a storage of reap.data, got {type(storage).__name__}: {shown(storage):.100}"
                f"{conversion(storage)}"
            )
        with unbroken(self):
            draw = self.draw(storage, positive(batch_size, "batch_size"), None)
            flags = self._flags_of(draw, storage)
        index = storage.as_index(draw.places)
        return index if index.ndim == 1 else tuple(index.unbind(-1)), {**draw.info, **flags}

    def _flags_of(self, draw: Draw, storage: Storage) -> dict[Any, Tensor]:
        """The flags of frames that this sampler sets, by key; most set none."""
        return {}

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether there are frames to choose from, for a sample of this size."""
        return len(storage) > 0

    def add(self, index: Any) -> None:
        """Do nothing: samplers find written items when they draw."""

    def extend(self, index: Any) -> None:
        """Do nothing: samplers find written items when they draw."""

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Note that these frames have been replaced; a prioritized sampler gives them the priority of new frames.

        Args:
            index: their indices, as the buffer's `extend` gives them.
            storage: holds the frames; needed unless a buffer uses the sampler.
        """

    @property
    def default_priority(self) -> float:
        """The priority of new frames."""
        return 1.0

    @property
    def needs_size(self) -> bool:
        """Whether the size of a sample must be known before the first one."""
        return False

    @abstractmethod
    def draw(self, storage: Storage, size: int, generator: torch.Generator | None) -> Draw:
        """Choose `size` frames.

        Args:
            storage: holds the frames.
            size: number of frames.
            generator: the source of random numbers; None for torch's own.

        Raises:
            CallOrderError: there are not enough frames.
        """

    def redraw(self, draw: Draw, bad: Mask, storage: Storage, generator: torch.Generator | None) -> Draw:
        """Choose again because some frames were being written; chooses all again unless a subclass overrides this.

        Args:
            draw: the previous choice.
            bad: which of these, `[B]`.
            storage: holds the frames.
            generator: the source of random numbers.
        """
        return self.draw(storage, len(bad), generator)

    def mark(self, draw: Draw, leaves: Leaves, storage: Storage) -> None:
        """Change the values `[B, *item]` under each key before the caller gets them."""

    def serve(self, storage: Storage, lock: AbstractContextManager[Any]) -> None:
        """Note the storage of the buffer that uses this sampler, and the buffer's lock."""

    def update_priority(self, index: Any, priority: Any, storage: Storage | None = None) -> None:
        """Set priorities of frames; ignored by most samplers.

        Args:
            index: their indices, as the buffer's `extend` gives them.
            priority: a number for all, or one for each.
            storage: holds the frames; by default the storage of the buffer that uses the sampler.
        """

    def replaced(self, places: Tensor, storage: Storage) -> None:
        """Note that frames at these places `[B]` replaced others; -1 is ignored."""

    def repair(self) -> None:
        """Repair the sampler's state after an exception in the middle of a call, such as Ctrl-C."""

    def resume(self, storage: Storage) -> None:
        """Note that the buffer's contents for the loaded state are now available."""

    def read_priorities(self, key: Key) -> None:
        """Use values under this key as priorities of new frames; ignored by most samplers."""

    @property
    def default_size(self) -> int | None:
        """The default number of frames in a sample."""
        return None

    @property
    def ran_out(self) -> bool:
        """Whether the last sample completed an epoch, in which each frame is sampled once."""
        return False

    def empty(self) -> None:
        """Forget all frames, because the buffer was emptied."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the sampler, as tensors, numbers, lists and dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def require_size(sampler: Sampler, batch_size: int | None) -> None:
    """Raise OptionError if the sampler needs a sample size and there is none."""
    if batch_size is None and sampler.needs_size:
        raise OptionError(
            "drop_last=True: expected a batch_size where the buffer is made: it decides which frames are left out; got none"
        )


class unbroken:  # noqa: N801  a context manager, which costs a fifth of one made from a function
    """A context that repairs a sampler after any exception that is not an error of reap.

    Args:
        sampler: the sampler.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, ReapError):
            self._sampler.repair()


def uniform_places(storage: Storage, size: int, generator: torch.Generator | None) -> Tensor:
    """Draw this number of places of readable, valid frames uniformly.

    Raises:
        CallOrderError: there are none.
    """
    ring = storage.ring
    oldest, claimed = ring.window
    columns = claimed - oldest
    if not columns:
        raise CallOrderError(EMPTY)
    places = _any_places(storage.rows, columns, ring.capacity, size, generator)
    valid = None if storage.validity is None else storage.validity.of(places.numpy())
    return places if valid is None else _valid_places(storage, columns, size, generator, places[torch.from_numpy(valid)])


def _any_places(rows: int, columns: int, capacity: int, size: int, generator: torch.Generator | None) -> Tensor:
    """Draw this number of places in the columns in use."""
    places = torch.randint(rows * columns, (size,), generator=generator)
    return places // columns * capacity + places % columns if columns < capacity and rows > 1 else places


def _valid_places(storage: Storage, columns: int, size: int, generator: torch.Generator | None, found: Tensor) -> Tensor:
    """The places found, completed by as many other places of valid frames as needed."""
    for _ in range(ATTEMPTS):
        if len(found) >= size:
            return found[:size]
        more = _any_places(storage.rows, columns, storage.ring.capacity, 2 * size, generator)
        found = torch.cat([found, valid_in(storage, more)])
    known = valid_in(storage, storage.places_in_use().reshape(-1))
    if not len(known):
        raise CallOrderError(NONE_VALID if storage.ring.readable else HIDDEN)
    return known[torch.randint(len(known), (size,), generator=generator)]


def valid_in(storage: Storage, places: Tensor) -> Tensor:
    """Those of these places that hold valid frames; see `Validity`."""
    valid = None if storage.validity is None else storage.validity.of(places.numpy())
    return places if valid is None else places[torch.from_numpy(valid)]


def refuse_if_hidden(storage: Storage, reading: Reading) -> None:
    """Raise CallOrderError because all frames of a buffer are being written, or their writers were killed."""
    if reading.writing and not storage.ring.readable:
        raise CallOrderError(HIDDEN)
