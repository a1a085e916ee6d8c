"""`StorageCore`: frames in a ring of columns, one for each row; a place is a number from 0 to rows * columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.data.storages.files.room import refuse_many
from reap.data.storages.items import Leaves, as_given, kind_of, together, whole
from reap.data.storages.positions import by_position, whole_numbers
from reap.data.storages.ring.control import Control, checked_state
from reap.data.storages.ring.ring import Ring
from reap.data.storages.schema import Schema
from reap.data.storages.validity import Validity
from reap.errors import OptionError, SpecMismatch
from reap.keys import NO_SIZES, Key, Sizes
from reap.option_values import positive
from reap.system.sending import SharedWhenSent

Mark = Callable[[Leaves], None]
"""Changes taken values, `[B, *item]` for each key, in place."""


class StorageCore(SharedWhenSent):
    """A ring of frames.

    Args:
        max_size: maximum number of frames, over all rows.
        ndim: number of batch dimensions, time last: 1 for `[time]`, 2 for `[rows, time]`.
        columns: initial size of the table of origins; by default for all frames.

    Raises:
        OptionError: an invalid size or number of dimensions.
        MemoryError: the table of origins does not fit into memory.

    Attributes:
        identity: identifies its contents: copies and handles have the same one; loading a state gives it a new one.
    """

    def __init__(self, max_size: int, *, ndim: int = 1, columns: int | None = None) -> None:
        self.max_size, self.ndim = positive(max_size, "max_size"), positive(ndim, "ndim")
        if columns is None:
            # Rows that do not divide max_size make room for as many more frames as it takes to have all columns whole.
            columns = self.max_size if ndim == 1 else 2 * self.max_size
        refuse_many(columns)
        self.control = Control(columns)
        self.identity = uuid4().hex
        self.rows = 1
        """Rows, once something was written."""
        self.schema: Schema | None = None
        """The schema of its items, once something was written, if items have a common one."""
        self.compilable = False
        """Whether a buffer is compilable by default."""
        self.takes_keys = False
        """Whether samples can have keys that frames lack."""
        self.validity: Validity | None = None
        """Tells which frames are valid; None if all are."""
        self._ring = Ring(self.control, self.max_size)

    @property
    def ring(self) -> Ring:
        """The ring, which tells which columns can be read."""
        return self._ring

    def __len__(self) -> int:
        """Number of frames that can be read."""
        return self.ring.readable * self.rows

    @property
    @abstractmethod
    def is_initialised(self) -> bool:
        """Whether its memory is allocated."""

    @abstractmethod
    def append(self, data: Any, origins: Any) -> Tensor:
        """Append data; return their places.

        Args:
            data: `[*rows, columns]`.
            origins: for each column, twice the number of its stream, plus one if a write starts there.
        """

    @abstractmethod
    def take(self, places: Tensor) -> Any:
        """Copies of the frames at these places `[B]`, for `merge` and `built`."""

    @abstractmethod
    def merge(self, taken: Any, at: NDArray[np.int64], part: Any) -> None:
        """Replace the values at some positions of those taken from all places by newly taken ones."""

    @abstractmethod
    def built(self, taken: Any, count: int, mark: Mark | None = None) -> Any:
        """Build data from taken values.

        Args:
            taken: a result of `take`.
            count: the number of places.
            mark: changes the values first.
        """

    def copies(self, places: Tensor) -> Any:
        """A copy of the frames at these places `[B]`."""
        return self.built(self.take(places), len(places))

    @abstractmethod
    def put(self, places: Tensor, data: Any) -> None:
        """Overwrite the frames at these places with data `[B]`."""

    @abstractmethod
    def contents(self) -> Any:
        """All complete frames, `[*rows, columns]`, in the order of their places."""

    @property
    @abstractmethod
    def keys(self) -> tuple[Key, ...]:
        """The keys of its frames; none before the first write."""

    @abstractmethod
    def leaf(self, key: Key) -> Tensor:
        """The values of all frames under a key, `[rows * columns, *item]`, by place.

        Raises:
            OptionError: the key does not exist.
        """

    collate: Callable[[Any], Any] | None = None
    """Makes a sample of the result of `copies`, unless the buffer has its own function; None leaves it as it is."""

    def together(self, data: Any, dims: int | None = None) -> Any:
        """Convert several of the user's items to data for `append`.

        Args:
            data: `[*batch, *item]`, or a list of items.
            dims: number of batch dimensions; by default the storage's.
        """
        items = together(data, self.ndim if dims is None else dims)
        kind_of(items)
        return items

    def single(self, item: Any, dims: int | None = None) -> Any:
        """Convert one of the user's items or columns to data for `append`, with one more batch dimension.

        Args:
            item: `[*batch, *item]`.
            dims: number of batch dimensions; by default the storage's without time.
        """
        dims = self.ndim - 1 if dims is None else dims
        data = whole(item, dims)
        kind_of(data)
        require_dims(data, dims)
        return data.unsqueeze(dims)

    @abstractmethod
    def at(self, index: Any) -> Any:
        """The frames of `contents()` at any index that a tensor accepts; see `by_position`.

        Raises:
            OptionError: a number is the place of an incomplete frame.
        """

    def copied(self, index: Any) -> Any:
        """A copy of the frames at an index."""
        places = self.places_at(index)
        data = whole(self.copies(places.reshape(-1)), 1)
        return as_given(data.reshape(*places.shape, *data.shape[1:]) if places.ndim else data[0])

    def at_places(self, places: Tensor, data: Any) -> Any:
        """Convert the user's data for these places `[*batch]` to the form for `put`; `[1]` for a single place."""
        return self.together(data, places.ndim) if places.ndim else self.single(data, 0)

    def put_at(self, places: Tensor, data: Any) -> Tensor:
        """Overwrite the frames at some places; returns the places `[B]`.

        Args:
            places: `[*batch]`.
            data: a result of `at_places`, possibly changed by transforms.

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
        """Number of columns in use: complete, being written, or incomplete."""
        oldest, claimed = self.ring.window
        return claimed - oldest

    def as_index(self, places: Tensor) -> Tensor:
        """Places as users see them: `[B]` for one dimension, `[B, ndim]` for more."""
        return places

    def as_places(self, index: Any) -> Tensor:
        """The places of an index `[B]`, `[B, ndim]`, or a tuple with a tensor for each dimension.

        Raises:
            OptionError: it holds no whole numbers.
        """
        return whole_numbers(index).reshape(-1)

    def places_in_use(self, whole: Any = None) -> Tensor:
        """The places of `contents()`, in the same shape.

        Args:
            whole: a result of `Ring.whole`; by default it is called.
        """
        ring = self.ring  # before the rows: it maps the first write of another process
        columns = ring.whole() if whole is None else whole
        numbers = np.arange(columns.start, columns.stop) if isinstance(columns, slice) else columns
        places = np.arange(self.rows)[:, None] * ring.capacity + numbers
        return torch.from_numpy(places).reshape(*self.row_shape, -1)

    def places_at(self, index: Any) -> Tensor:
        """The places of any index that a tensor accepts; see `by_position`.

        Raises:
            OptionError: a number is the place of an incomplete frame.
        """
        whole = self.ring.whole()
        return self.places_in_use(whole)[by_position(index, whole, self.ndim - 1)]

    @property
    @abstractmethod
    def places_noted(self) -> int:
        """Number of places whose origin is kept in a state."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The dimensions of the rows in `contents()`."""
        return ()

    @property
    def item_dims(self) -> int:
        """Number of batch dimensions of one item: 1 if each is a trajectory `[T]`."""
        return 0

    @property
    def classes(self) -> Mapping[str, Any]:
        """The tensorclasses and named tuples in its data, by name."""
        return {}

    def frames(self) -> dict[Key, Tensor]:
        """The used parts of its tensors, `[*rows, columns, *item]` by key: views of its memory."""
        return {}

    @property
    def sizes(self) -> Sizes:
        """The batch dimensions of items, and of the TensorDicts nested in them."""
        return self.schema.sizes if self.schema else NO_SIZES

    def state(self) -> dict[str, Any]:
        """Everything except the `frames` as plain data; with the ring's lock held.

        Raises:
            TypeError: it holds objects that are not plain data.
        """
        return {"max_size": self.max_size, "ndim": self.ndim, "control": self.control.state(self.places_noted)}

    @abstractmethod
    def load_state(self, state: Mapping[str, Any], frames: Mapping[Key, Tensor]) -> None:
        """Load the state of another storage.

        Args:
            state: its `state`.
            frames: its `frames`.

        Raises:
            SpecMismatch: it has another size or holds something else; nothing is changed.
            CallOrderError: a process is writing; nothing is changed.
        """

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Load the `state` of another storage's control; with the ring's lock held."""
        self.control.restore(state)
        self.identity = uuid4().hex

    def columns_in(self, state: Mapping[str, Any], capacity: int) -> int:
        """Number of columns in use in a storage with this state and this capacity.

        Raises:
            SpecMismatch: an invalid state, or a different size.
        """
        for name, own in (("max_size", self.max_size), ("ndim", self.ndim)):
            if state[name] != own:
                raise SpecMismatch(
                    f"replay buffer: expected the state of a storage with {name}={own}, got {name}={state[name]}; nothing was "
                    f"changed. Make the storage with {name}={state[name]}"
                )
        return checked_state(state["control"], max(self.max_size, self.control.columns), capacity)

    def share(self) -> None:
        """Let other processes write too, and sample.

        Raises:
            OptionError: it cannot be shared.
        """
        raise OptionError(f"replay buffer: a {type(self).__name__} cannot be shared between processes; use a LazyTensorStorage")


def require_dims(data: Any, dims: int) -> None:
    """Raise SpecMismatch for data with fewer batch dimensions than the storage."""
    if getattr(data, "ndim", dims) < dims:  # values that are not data are refused elsewhere
        raise SpecMismatch(
            f"replay buffer: expected at least {dims} batch dimensions, as the storage's ndim says, got {list(data.shape)}; "
            "`extend` takes several items, `add` a single one"
        )
