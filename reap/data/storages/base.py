"""`Storage`: frames in a ring of columns, one for each row; a place is a number from 0 to rows * columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.data.storages.control import ORIGIN_BYTES, WRITERS, Control
from reap.data.storages.items import Leaves, kind_of, together, whole
from reap.data.storages.ring import Ring
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key
from reap.memory import available_memory, readable

Mark = Callable[[Leaves], None]
"""Changes what was taken, `[B, *item]` under each key, in place."""


class Storage:
    """Frames in a ring.

    Args:
        max_size: frames that there is room for, over all rows.
        ndim: batch dimensions that are kept apart, time last: 1 for `[time]`, 2 for `[rows, time]`.

    Raises:
        OptionError: no such size or number of dimensions.
        MemoryError: so many frames that there is no memory for the table of who wrote them.
    """

    def __init__(self, max_size: int, *, ndim: int = 1) -> None:
        self.max_size, self.ndim = positive(max_size, "max_size"), positive(ndim, "ndim")
        _refuse_beyond_memory(max_size)
        self.control = Control(max_size)
        self.rows = 1
        """Rows, once something was written."""
        self._ring = Ring(self.control, max_size)

    @property
    def ring(self) -> Ring:
        """Which of its columns can be read."""
        return self._ring

    def __len__(self) -> int:
        """Frames that can be read."""
        return self.ring.readable * self.rows

    @property
    @abstractmethod
    def is_initialised(self) -> bool:
        """Whether its memory is taken."""

    @abstractmethod
    def append(self, data: Any, origins: Any) -> Tensor:
        """Write data behind what was written last, and return their places.

        Args:
            data: `[*rows, columns]`.
            origins: for each column, twice the number of its stream, plus one where a write begins.
        """

    @abstractmethod
    def take(self, places: Tensor) -> Any:
        """Copies of what lies at these places `[B]`, for `merge` and `built`."""

    @abstractmethod
    def merge(self, taken: Any, at: NDArray[np.int64], part: Any) -> None:
        """Put what was taken from some places, at these numbers, into what was taken from all."""

    @abstractmethod
    def built(self, taken: Any, count: int, mark: Mark | None = None) -> Any:
        """The data of which this was taken.

        Args:
            taken: what `take` returned.
            count: from how many places.
            mark: changes it before.
        """

    def get(self, places: Tensor) -> Any:
        """A copy of what lies at these places `[B]`."""
        return self.built(self.take(places), len(places))

    @abstractmethod
    def put(self, places: Tensor, data: Any) -> None:
        """Write data `[B]` in the place of what lies there."""

    @abstractmethod
    def contents(self) -> Any:
        """All that was written, `[*rows, columns]`, in the order of the places."""

    @property
    @abstractmethod
    def keys(self) -> tuple[Key, ...]:
        """The keys of what it holds; none before the first write."""

    @abstractmethod
    def leaf(self, key: Key) -> Tensor:
        """All frames' values under a key, `[rows * columns, *item]`, by place.

        Raises:
            OptionError: there is no such key.
        """

    collate: Callable[[Any], Any] | None = None
    """What makes a sample of what `get` returns, unless the buffer is told another way; None leaves it as it is."""

    def together(self, data: Any, dims: int | None = None) -> Any:
        """What was given to write several items, as `append` takes it.

        Args:
            data: `[*batch, *item]`, or a list of items.
            dims: dimensions of the batch; those of the storage unless given.
        """
        items = together(data, self.ndim if dims is None else dims)
        kind_of(items)
        return items

    def single(self, item: Any, dims: int | None = None) -> Any:
        """What was given to write one item, or one column, as `append` takes it: with one more dimension of the batch.

        Args:
            item: `[*batch, *item]`.
            dims: dimensions of the batch; all of the storage but time unless given.
        """
        dims = self.ndim - 1 if dims is None else dims
        data = whole(item, dims)
        kind_of(data)
        require_dims(data, dims)
        return data.unsqueeze(dims)

    def at(self, index: Any) -> Any:
        """What lies at an index of any kind that a tensor takes, in `contents()`."""
        return self.contents()[index]

    def at_places(self, places: Tensor, data: Any) -> Any:
        """What was given to write over these places `[*batch]`, as `put` takes it; `[1]` where there is one place."""
        return self.together(data, places.ndim) if places.ndim else self.single(data, 0)

    def put_at(self, places: Tensor, data: Any) -> Tensor:
        """Write over what lies at some places; returns these `[B]`.

        Args:
            places: `[*batch]`.
            data: what `at_places` made of that which was given, and functions of that.

        Raises:
            SpecMismatch: the data do not fit; nothing is changed.
        """
        places = places if places.ndim else places.unsqueeze(0)
        if tuple(data.shape[: places.ndim]) != tuple(places.shape):
            raise SpecMismatch(
                f"replay buffer: expected data {list(places.shape)} for this index, got {list(data.shape)}; nothing was changed"
            )
        self.put(places.reshape(-1), data.flatten(0, places.ndim - 1) if places.ndim > 1 else data)
        return places.reshape(-1)

    @property
    def columns_in_use(self) -> int:
        """Columns that hold something, or are being written."""
        oldest, claimed = self.ring.window
        return claimed - oldest

    def as_index(self, places: Tensor) -> Tensor:
        """Places as people write them: `[B]` for one dimension, `[B, ndim]` for more."""
        return places

    def as_places(self, index: Any) -> Tensor:
        """The places of an index `[B]`, `[B, ndim]`, or a tuple with a tensor for each dimension."""
        return torch.as_tensor(index, dtype=torch.int64).reshape(-1)

    def places_in_use(self) -> Tensor:
        """The places of `contents()`, in the same shape."""
        ring = self.ring  # before the rows: what another process wrote first is mapped
        places = torch.arange(self.rows * ring.capacity).view(self.rows, -1)
        return places[:, : self.columns_in_use].reshape(*self.row_shape, -1)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """How the rows stand in `contents()`."""
        return ()

    @property
    def item_dims(self) -> int:
        """Batch dimensions of one item: 1 where each is a trajectory `[T]`."""
        return 0

    @property
    def classes(self) -> Mapping[str, Any]:
        """The tensorclasses and named tuples that its data are made of, by name."""
        return {}

    def frames(self) -> dict[Key, Tensor]:
        """The tensors under each key that are in use, `[*rows, columns, *item]`: views of its memory."""
        return {}

    def state(self) -> dict[str, Any]:
        """All but the `frames` as plain data; with the ring's lock held.

        Raises:
            TypeError: it holds objects that are no plain data.
        """
        return {"max_size": self.max_size, "ndim": self.ndim, "control": self.control.state()}

    @abstractmethod
    def load_state(self, state: Mapping[str, Any], frames: Mapping[Key, Tensor]) -> None:
        """Hold what another storage held.

        Args:
            state: its `state`.
            frames: its `frames`.

        Raises:
            SpecMismatch: it has another size or holds something else; nothing is changed.
        """

    def columns_in(self, state: Mapping[str, Any], capacity: int) -> int:
        """Columns in use in a storage with this state and so many columns.

        Raises:
            SpecMismatch: there is no such storage, or none of this size.
        """
        for name, own in (("max_size", self.max_size), ("ndim", self.ndim)):
            if state[name] != own:
                raise SpecMismatch(
                    f"replay buffer: expected the state of a storage with {name}={own}, got {name}={state[name]}; nothing was "
                    f"changed. Make the storage with {name}={state[name]}"
                )
        control = state["control"]
        claimed, floor, origins = control["claimed"], control["floor"], control["origins"]
        columns = claimed - max(floor, claimed - capacity)
        if not (0 <= floor <= claimed and (columns == capacity or floor % capacity == 0)):
            raise SpecMismatch(f"replay buffer: expected the counts of a ring, got {floor} to {claimed}; nothing was changed")
        if origins.dtype != torch.int32 or len(origins) != self.max_size or len(control["writing"]) > WRITERS:
            raise SpecMismatch("replay buffer: expected the tables of a ring, got others; nothing was changed")
        return columns

    def share(self) -> None:
        """Let other processes write too, and sample.

        Raises:
            OptionError: that cannot be.
        """
        raise OptionError(f"replay buffer: a {type(self).__name__} cannot be shared between processes; use a LazyTensorStorage")


def _refuse_beyond_memory(max_size: int) -> None:
    needed, (free, bound) = max_size * ORIGIN_BYTES, available_memory()
    if needed > free:
        raise MemoryError(
            f"replay buffer: max_size={max_size}: the table of who wrote what needs {readable(needed)}, {bound} has "
            f"{readable(free)} left; expected fewer frames"
        )


def require_dims(data: Any, dims: int) -> None:
    """Raise SpecMismatch for data with fewer batch dimensions than a storage keeps apart."""
    if getattr(data, "ndim", dims) < dims:  # what is no data at all is refused elsewhere
        raise SpecMismatch(
            f"replay buffer: expected at least {dims} batch dimensions, as the storage's ndim says, got {list(data.shape)}"
        )


def positive(value: Any, name: str) -> int:
    """The value, a positive integer.

    Raises:
        OptionError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name}: expected a positive integer, got {value!r}")
    return value
