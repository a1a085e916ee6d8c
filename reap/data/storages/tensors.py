"""`TensorStorage`: tensors `[*rows, columns, *item]` under each key, whose memory is taken at the first write."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from reap.data.storages.base import Mark, Storage, require_dims
from reap.data.storages.frame_identity import replaced_places
from reap.data.storages.items import Leaves, checked_device, kind_of, leaves_of, require_device
from reap.data.storages.leaf import Leaf, indexable
from reap.data.storages.next_values.rebuild import RebuildNext
from reap.data.storages.next_values.side_store import Sparse
from reap.data.storages.next_values.store import StoreNext
from reap.data.storages.positions import by_position, index_of, places_of
from reap.data.storages.ring.columns import Pieces
from reap.data.storages.ring.ring import Claim, Ring
from reap.data.storages.schema import Schema, objects_of, schema_from, schema_of
from reap.data.storages.validity import validity_in
from reap.errors import CallOrderError, OptionError, SpecMismatch
from reap.keys import Key, plain
from reap.recording.layout import Array, Layout
from reap.recording.objects import stacked, to_state, unstacked
from reap.system.memory import readable

log = logging.getLogger("reap.data")


class TensorStorage(Storage):
    """A storage of tensors, whose memory is up to subclasses."""

    def __init__(self, max_size: int, *, ndim: int = 1, device: Any = "cpu", observations_once: bool = False) -> None:
        super().__init__(max_size, ndim=ndim)
        self.device = checked_device(device)
        self._nexts: StoreNext = RebuildNext() if observations_once else StoreNext()
        self.schema: Schema | None = None
        self._accepted: Any = None
        self._leaves: dict[Key, Leaf] = {}
        self._objects: dict[Key, Array] = {}

    # ------------------------------------------------------------------ memory

    @abstractmethod
    def _allocate(self, layout: Layout, lead: tuple[int, ...]) -> Mapping[Key, Tensor]:
        """New tensors for these fields; fields that cannot fit are refused first.

        Args:
            layout: the fields of all items.
            lead: their first dimensions.
        """

    @abstractmethod
    def _attach(self, layout: Layout, lead: tuple[int, ...]) -> Mapping[Key, Tensor]:
        """The tensors that another process allocated."""

    @abstractmethod
    def _sparse(self, start: int, nbytes: int) -> Sparse:
        """Memory after the first `start` bytes, whose pages are taken as they are used."""

    def _reserve(self, columns: int) -> None:
        """Make sure that there is room for the first `columns` columns; with the ring's lock held.

        Raises:
            DiskFull: there is none.
        """

    @property
    @abstractmethod
    def place(self) -> str:
        """A description of its memory."""

    @property
    def holds_objects(self) -> bool:
        """Whether it can hold Python objects beside tensors."""
        return not self.control.is_shared

    @property
    def is_initialised(self) -> bool:
        """Whether its memory is taken, here or in another process that shares it."""
        self._look_again()
        return self.schema is not None

    @property
    def ring(self) -> Ring:
        """Which of its columns can be read."""
        self._look_again()
        return self._ring

    def _look_again(self) -> None:
        """Map the first write of another process."""
        if self.schema is None and (noted := self.control.schema) is not None:
            self._take(noted, self._attach)

    def _initialise(self, schema: Schema) -> None:
        objects = [plain(key) for key, field in schema.fields.items() if field.is_object]
        if objects and not self.holds_objects:
            raise SpecMismatch(f"replay buffer: {self.place} cannot hold the Python objects of {objects}; leave them out")
        with self.control.lock:
            if self.control.schema is None:
                self._take(schema, self._allocate)
                self.control.note_schema(schema)
        assert self.is_initialised

    def _take(self, schema: Schema, make: Any) -> None:
        rows = math.prod(schema.rows)
        capacity = self.max_size // rows
        if not capacity:
            raise OptionError(f"max_size={self.max_size}: expected room for one frame of each of the {rows} rows at least")
        lead = (*schema.rows, capacity)
        stored = self._nexts.stored_fields(schema.fields)
        layout = Layout({key: field.lead(*lead) for key, field in stored.items() if not field.is_object})
        leaves = make(layout, lead)
        self._nexts.allocate(schema.fields, rows * capacity, partial(self._sparse, layout.nbytes))
        self._place(schema, leaves)
        log.info("%r", self)

    def _place(self, schema: Schema, leaves: Mapping[Key, Tensor]) -> None:
        self.rows, self.schema, self.takes_keys = math.prod(schema.rows), schema, schema.kind is TensorDict
        capacity = self.max_size // self.rows
        self._ring = Ring(self.control, capacity)
        self._leaves = {key: Leaf(leaf, self.ndim) for key, leaf in leaves.items()}
        self.validity = validity_in(self._leaves, schema.fields, self.ndim, self.control)
        objects = [key for key, field in schema.fields.items() if field.is_object]
        self._objects = {key: np.full((self.rows, capacity), None, object) for key in objects}

    def _unmapped(self) -> dict[str, Any]:
        """Its attributes for a process that maps the memory itself."""
        mapped = {"schema": None, "_accepted": None, "_leaves": {}, "_objects": {}, "_ring": None, "validity": None}
        return {**vars(self), **mapped, "_nexts": self._nexts.fresh()}

    def _map_later(self) -> None:
        """Hold nothing until `_look_again` maps the memory."""
        self._ring, self.rows = Ring(self.control, self.max_size), 1

    # ------------------------------------------------------------------ frames

    def append(self, data: Any, origins: Any) -> Tensor:
        """Write data after those written last; see `Storage`.

        Raises:
            SpecMismatch: they differ in form from the first write; nothing is changed.
            MemoryError: the first write, of items for which there is no room.
            DiskFull: the disk has no room left for them; nothing is changed.
            OptionError: the first write, to a folder that another storage uses.
        """
        kind, leaves, shape = kind_of(data), leaves_of(data), tuple(data.shape[: self.ndim])
        self._check(data, kind, leaves, shape)
        rows, columns, capacity = self.rows, shape[-1], self.ring.capacity
        if not columns:
            return torch.empty(0, dtype=torch.int64)
        skipped = max(0, columns - capacity)
        prepared = self._nexts.prepare(self, leaves, skipped)
        try:
            claim = self.ring.claim(columns - skipped, self._reserve)
            self._copy(leaves, claim, skipped, origins)
            self._nexts.write(self, leaves, claim, prepared)
            self.ring.publish(claim, columns * rows)
        except BaseException:
            self.ring.give_up_broken()
            raise
        return torch.from_numpy(self.places(claim.start - skipped, columns))

    def _check(self, data: Any, kind: Any, leaves: Leaves, shape: tuple[int, ...]) -> None:
        """Refuse data that do not fit; such as were accepted just before are not looked at again."""
        entries = [(key, value.shape, getattr(value, "dtype", None), value.device) for key, value in leaves.items()]
        given = (kind, data.shape, entries)
        if given != self._accepted:
            self._check_anew(data, kind, leaves, shape)
            self._accepted = given

    def _check_anew(self, data: Any, kind: Any, leaves: Leaves, shape: tuple[int, ...]) -> None:
        require_dims(data, self.ndim)
        require_device(leaves, self.device)
        if not self.is_initialised:
            if not math.prod(shape):
                raise SpecMismatch(
                    f"replay buffer: the first write defines the items: expected at least one item, got {list(shape)}"
                )
            self._initialise(schema_of(data, leaves, self.ndim))
        schema = self.schema
        assert schema is not None
        schema.check(kind, leaves, self.ndim)
        if kind is not schema.kind:
            self.schema = schema.with_classes_of(kind)
        if shape[:-1] != schema.rows:
            raise SpecMismatch(
                f"replay buffer: expected rows {list(schema.rows)}, as in the first write, got {list(shape[:-1])}; "
                "nothing was written"
            )

    def _copy(self, leaves: Leaves, claim: Claim, skipped: int, origins: Any) -> None:
        """One contiguous copy per key, or two if the columns wrap around the end of the ring."""
        time, pieces = self.ndim - 1, self.ring.pieces(claim.start, claim.start + claim.columns)
        is_whole, source = not skipped and len(pieces) == 1, skipped
        for first, end in pieces:
            count = end - first
            for key, leaf in self._leaves.items():
                value = leaves[key]
                leaf.write(first, end, value if is_whole else value.narrow(time, source, count))
            self.ring.origins.note(first, end, origins[source : source + count], self.rows)
            for key, objects in self._objects.items():
                columns = unstacked(leaves[key], leaves[key].batch_size).reshape(self.rows, -1)
                objects[:, first:end] = columns[:, source : source + count]
            source += count

    def take(self, places: Tensor) -> Leaves:
        """Copies of the frames at these places, `[B, *item]` under each key in the order of the first write; see `Storage`."""
        self._known()
        here, at = places.to(self.device), places.numpy()
        leaves: Leaves = {key: leaf.take(here, at) for key, leaf in self._leaves.items()}
        if self._objects:
            leaves |= {key: objects.reshape(-1)[at] for key, objects in self._objects.items()}
            leaves = {key: leaves[key] for key in self._known().fields if key in leaves}
        return self._nexts.complete(self, places, leaves)

    def merge(self, taken: Leaves, at: NDArray[np.int64], part: Leaves) -> None:
        """Replace the values of some places among those of all; see `Storage`."""
        here = torch.from_numpy(at).to(self.device)
        for key, value in taken.items():
            if key in self._objects:
                value[at] = part[key]
            else:
                indexable(value).index_copy_(0, here, indexable(part[key]))

    def built(self, taken: Leaves, count: int, mark: Mark | None = None) -> Any:
        """Values that were taken, as data; see `Storage`."""
        if mark is not None:
            mark(taken)
        for key in self._objects:
            taken[key] = stacked(taken[key])
        return self._known().rebuilt(taken, torch.Size((count,)))

    def put(self, places: Tensor, data: Any) -> None:
        """Overwrite the frames at these places with data `[B]`."""
        leaves = leaves_of(data)
        self._known().check(kind_of(data), leaves, 1)
        with self.ring.editing(replaced_places(self, places, leaves)), self._nexts.editing(self, places, leaves):
            for key, leaf in self._leaves.items():
                leaf.put(places.to(self.device), leaves[key])
            for key, objects in self._objects.items():
                objects.reshape(-1)[places.numpy()] = unstacked(leaves[key], leaves[key].batch_size)

    def contents(self) -> Any:
        """All complete frames, `[*rows, columns]`: views if they are in one piece, which later writes change."""
        if isinstance(whole := self.ring.whole(), slice):
            return self._known().rebuilt(*self._held(whole))
        with self.control.lock:
            return self._known().rebuilt(*self._held(self.ring.whole()))

    def _held(self, whole: slice | NDArray[np.int64]) -> tuple[Leaves, torch.Size]:
        """The leaves of these columns, views of them or copies, and the dimensions of the batch."""
        schema, rows = self._known(), (slice(None),) * (self.ndim - 1)
        leaves: Leaves = {key: leaf.values[*rows, whole] for key, leaf in self._leaves.items()}
        leaves |= {key: value[*rows, whole] for key, value in self._nexts.contents(self, self.columns_in_use).items()}
        count = whole.stop - whole.start if isinstance(whole, slice) else len(whole)
        shape = torch.Size((*schema.rows, count))
        leaves |= {key: stacked(held[:, whole].reshape(shape)) for key, held in self._objects.items()}
        return {key: leaves[key] for key in schema.fields}, shape

    def at(self, index: Any) -> Any:
        """The frames at an index; see `Storage`."""
        return self._nexts.at(self, index)

    def viewed(self, index: Any) -> Any:
        """The frames at an index: views if the contents are in one piece."""
        if isinstance(whole := self.ring.whole(), slice):
            return self._known().at(*self._held(whole), by_position(index, whole, self.ndim - 1))
        with self.control.lock:
            return self.copied(index)

    def places(self, start: int, columns: int) -> NDArray[np.int64]:
        """The places of the frames of consecutive columns, row by row, `[rows * columns]`."""
        places = self.ring.places(start, columns)
        return places if self.rows == 1 else (np.arange(self.rows)[:, None] * self.ring.capacity + places).ravel()

    def leaf(self, key: Key) -> Tensor:
        """All frames' values under a key, `[rows * columns, *item]`, by place.

        Raises:
            OptionError: there is no such key.
        """
        self._known()
        if key in self._leaves:
            return self._leaves[key].flat
        rebuilt = self._nexts.contents(self, self.ring.capacity)
        if key not in rebuilt:
            raise OptionError(f"replay buffer: no key {plain(key)!r}; it holds {[*map(plain, (*self._leaves, *rebuilt))]}")
        return rebuilt[key].flatten(0, self.ndim - 1)

    def values(self, key: Key, places: Tensor) -> Tensor:
        """A copy of the values under a key at these places `[B]`."""
        leaf = self._leaves.get(key)
        return self.take(places)[key] if leaf is None else leaf.take(places.to(self.device), places.numpy())

    def numbers(self, key: Key, pieces: Pieces) -> Array:
        """The values under a key in pieces of the columns as numbers of numpy's, `[rows, n, k]`; see `Leaf`."""
        leaf = self._leaves.get(key) or Leaf(self.leaf(key).unflatten(0, (self.rows, -1)), 2)
        return leaf.numbers(pieces)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The dimensions of the rows in `contents()`."""
        return self._known().rows

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of its frames; none before the first write."""
        return tuple(self.schema.fields) if self.is_initialised and self.schema else ()

    def as_index(self, places: Tensor) -> Tensor:
        """Places as people write them: `[B]` for one dimension, `[B, ndim]` for more."""
        return places if self.ndim == 1 else index_of(places, (*self._known().rows, self.ring.capacity))

    def as_places(self, index: Any) -> Tensor:
        """The places of an index `[B]`, `[B, ndim]`, or a tuple with a tensor for each dimension.

        Raises:
            OptionError: a number outside of the storage.
        """
        if self.ndim == 1:
            return super().as_places(index)
        return places_of(index, (*self._known().rows, self.ring.capacity))

    def _known(self) -> Schema:
        if not self.is_initialised or self.schema is None:
            raise CallOrderError("replay buffer: expected something to be written to it first, found it empty")
        return self.schema

    # ------------------------------------------------------------------ state

    @property
    def item_dims(self) -> int:
        """Batch dimensions of one item; see `Storage`."""
        return len(self.schema.item) if self.is_initialised and self.schema else 0

    @property
    def classes(self) -> Mapping[str, Any]:
        """The tensorclasses and named tuples that its data are made of, by name."""
        return self.schema.classes() if self.is_initialised and self.schema else {}

    def frames(self) -> dict[Key, Tensor]:
        """The tensors under each key that are in use, `[*rows, columns, *item]`; see `Storage`."""
        columns = self.columns_in_use
        return self._frames(columns) | self._nexts.contents(self, columns) if self.is_initialised else {}

    def _frames(self, columns: int) -> dict[Key, Tensor]:
        return {key: leaf.values.narrow(self.ndim - 1, 0, columns) for key, leaf in self._leaves.items()}

    def state(self) -> dict[str, Any]:
        """All but the `frames`; see `Storage`."""
        schema = self.schema if self.is_initialised else None
        objects = {
            key: [to_state(value) for value in held[:, : self.columns_in_use].flat] for key, held in self._objects.items()
        }
        return {**super().state(), "schema": schema.state() if schema else None, "objects": objects}

    def load_state(self, state: Mapping[str, Any], frames: Mapping[Key, Tensor]) -> None:
        """Load the state of another storage; see `Storage`.

        Raises:
            SpecMismatch: it has another size or holds something else; nothing is changed.
            MemoryError: there is no room for it.
            DiskFull: the disk has none; nothing is changed.
        """
        noted = state["schema"]
        columns = self.columns_in(state, self.max_size // (math.prod(noted["rows"]) if noted else self.rows))
        saved = schema_from(noted, self.classes, self.device) if noted else None
        if saved is not None:
            saved.check_state(self.schema if self.is_initialised else None, columns, frames)
        elif columns:
            raise SpecMismatch("replay buffer: expected the keys of the frames in the state, got none; nothing was changed")
        objects = objects_of(saved, columns, state["objects"])
        if saved is not None and not self.is_initialised:
            self._initialise(saved)
        prepared = self._nexts.prepare(self, dict(frames), 0) if columns else None
        with self.ring.replacing():
            if columns:
                self._reserve(columns)
                for key, leaf in self._frames(columns).items():
                    leaf.copy_(frames[key])
                self._nexts.load(self, frames, prepared, state["control"]["claimed"])
            for key, values in objects.items():
                self._objects[key][:, :columns] = values
            self._restore(state["control"])

    def __repr__(self) -> str:
        size = sum(leaf.values.nbytes for leaf in self._leaves.values()) + self._nexts.nbytes
        held = f"{readable(size)} in {self.place}" if self.schema else "nothing yet"
        return f"{type(self).__name__}(max_size={self.max_size}, ndim={self.ndim}, device={str(self.device)!r}, {held})"
