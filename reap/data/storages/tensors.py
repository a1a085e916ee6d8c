"""`TensorRing`: tensors `[*rows, columns, *item]` for each key, allocated at the first write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.data.storages.core import Mark, require_dims
from reap.data.storages.edits.fitting import fitted
from reap.data.storages.edits.frame_identity import replaced_places
from reap.data.storages.items import Leaves, device_of, kind_of, leaves_of, require_device
from reap.data.storages.leaf import Leaf, indexable
from reap.data.storages.memory import TensorMemory
from reap.data.storages.positions import by_position, index_of, places_of
from reap.data.storages.ring.columns import Pieces
from reap.data.storages.ring.ring import Claim
from reap.data.storages.schema import Schema, objects_of, schema_from, schema_of
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, plain
from reap.recording.layout import Array
from reap.recording.objects import stacked, to_state, unstacked
from reap.system.memory import readable


class TensorRing(TensorMemory):
    """A storage of tensors; subclasses provide the memory."""

    schema: Schema | None

    # ------------------------------------------------------------------ frames

    def append(self, data: Any, origins: Any) -> Tensor:
        """Append data; see `Storage`.

        Raises:
            SpecMismatch: they differ in form from the first write; nothing is changed.
            MemoryError: on the first write, the items do not fit into memory.
            DiskFull: there is not enough disk space; nothing is changed.
            OptionError: on the first write, another storage uses the folder.
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
        """Raise SpecMismatch for data that do not fit; data like the last accepted ones are not checked again."""
        entries = [(key, value.shape, getattr(value, "dtype", None), value.device) for key, value in leaves.items()]
        given = (kind, data.shape, entries)
        if given != self._accepted:
            self._check_anew(data, kind, leaves, shape)
            self._accepted = given

    def _check_anew(self, data: Any, kind: Any, leaves: Leaves, shape: tuple[int, ...]) -> None:
        require_dims(data, self.ndim)
        if self._takes_first_device and not self.is_initialised:
            self.device = device_of(leaves)
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
        """Replace the values of some places in those of all; see `Storage`."""
        here = torch.from_numpy(at).to(self.device)
        for key, value in taken.items():
            if key in self._objects:
                value[at] = part[key]
            else:
                indexable(value).index_copy_(0, here, indexable(part[key]))

    def built(self, taken: Leaves, count: int, mark: Mark | None = None) -> Any:
        """Build data from taken values; see `Storage`."""
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

    def put_at(self, places: Tensor, data: Any) -> Tensor:
        """Overwrite the frames at some places; data are broadcast, and may lack keys or have new ones; see `fitted`."""
        self._known()
        places = places if places.ndim else places.unsqueeze(0)
        self.put(places.reshape(-1), fitted(self, places, data))
        return places.reshape(-1)

    def contents(self) -> Any:
        """All complete frames, `[*rows, columns]`: if they are contiguous, views, which later writes change."""
        if isinstance(whole := self.ring.whole(), slice):
            return self._known().rebuilt(*self._held(whole))
        with self.control.lock:
            return self._known().rebuilt(*self._held(self.ring.whole()))

    def _held(self, whole: slice | NDArray[np.int64]) -> tuple[Leaves, torch.Size]:
        """The leaves of these columns, as views or copies, and their batch dimensions."""
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
        """The frames at an index: views if the contents are contiguous."""
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
            OptionError: the key does not exist.
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
        """The values under a key in blocks of columns as numpy arrays, `[rows, n, k]`; see `Leaf`."""
        leaf = self._leaves.get(key) or Leaf(self.leaf(key).unflatten(0, (self.rows, -1)), 2)
        return leaf.numbers(pieces)

    def as_index(self, places: Tensor) -> Tensor:
        """Places as users see them: `[B]` for one dimension, `[B, ndim]` for more."""
        return places if self.ndim == 1 else index_of(places, (*self._known().rows, self.ring.capacity))

    def as_places(self, index: Any) -> Tensor:
        """The places of an index `[B]`, `[B, ndim]`, or a tuple with a tensor for each dimension.

        Raises:
            OptionError: a number outside the storage.
        """
        if self.ndim == 1:
            return super().as_places(index)
        return places_of(index, (*self._known().rows, self.ring.capacity))

    # ------------------------------------------------------------------ state

    def frames(self) -> dict[Key, Tensor]:
        """The used parts of its tensors, `[*rows, columns, *item]` by key; see `Storage`."""
        columns = self.columns_in_use
        return self._frames(columns) | self._nexts.contents(self, columns) if self.is_initialised else {}

    def _frames(self, columns: int) -> dict[Key, Tensor]:
        return {key: leaf.values.narrow(self.ndim - 1, 0, columns) for key, leaf in self._leaves.items()}

    def state(self) -> dict[str, Any]:
        """Everything except the `frames`; see `Storage`."""
        schema = self.schema if self.is_initialised else None
        objects = {
            key: [to_state(value) for value in held[:, : self.columns_in_use].flat] for key, held in self._objects.items()
        }
        return {**super().state(), "schema": schema.state() if schema else None, "objects": objects}

    def load_state(self, state: Mapping[str, Any], frames: Mapping[Key, Tensor]) -> None:
        """Load the state of another storage; see `Storage`.

        Raises:
            SpecMismatch: it has another size or holds something else; nothing is changed.
            MemoryError: it does not fit into memory.
            DiskFull: there is not enough disk space; nothing is changed.
        """
        noted = state["schema"]
        columns = self.columns_in(state, self._columns_for(math.prod(noted["rows"]) if noted else self.rows))
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
