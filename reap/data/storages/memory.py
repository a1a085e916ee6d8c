"""`TensorMemory`: the memory of a storage of tensors, allocated at the first write, and its schema."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from reap.data.storages.base import Storage
from reap.data.storages.items import checked_device
from reap.data.storages.leaf import Leaf
from reap.data.storages.next_values.rebuild import RebuildNext
from reap.data.storages.next_values.side_store import Sparse
from reap.data.storages.next_values.store import StoreNext
from reap.data.storages.ring.ring import Ring
from reap.data.storages.schema import Schema
from reap.data.storages.validity import validity_in
from reap.errors import CallOrderError, OptionError, SpecMismatch
from reap.keys import Key, plain
from reap.option_values import switch
from reap.recording.layout import Array, Field, Layout

log = logging.getLogger("reap.data")


class TensorMemory(Storage):
    """Tensors `[*rows, columns, *item]` for each key; subclasses decide where they are."""

    def __init__(self, max_size: int, *, ndim: int = 1, device: Any = "cpu", observations_once: bool = False) -> None:
        super().__init__(max_size, ndim=ndim)
        self._takes_first_device = device == "auto"
        self.device = torch.device("cpu") if self._takes_first_device else checked_device(device)
        self._nexts: StoreNext = RebuildNext() if switch(observations_once, "observations_once") else StoreNext()
        self._accepted: Any = None
        self._leaves: dict[Key, Leaf] = {}
        self._objects: dict[Key, Array] = {}

    @abstractmethod
    def _allocate(self, layout: Layout, lead: tuple[int, ...]) -> Mapping[Key, Tensor]:
        """Allocate tensors for these fields; first refuses fields that do not fit.

        Args:
            layout: the fields of all items.
            lead: their first dimensions.
        """

    def _attach(self, layout: Layout, lead: tuple[int, ...]) -> Mapping[Key, Tensor]:
        """Map the tensors that another process allocated; for storages that can be shared."""
        raise NotImplementedError

    @abstractmethod
    def _sparse(self, start: int, nbytes: int) -> Sparse:
        """Memory after the first `start` bytes, whose pages are allocated on use."""

    def _reserve(self, columns: int) -> None:
        """Reserve room for the first `columns` columns; with the ring's lock held.

        Raises:
            DiskFull: there is not enough.
        """

    @property
    @abstractmethod
    def place(self) -> str:
        """A description of its memory."""

    @property
    def holds_objects(self) -> bool:
        """Whether it can hold Python objects next to tensors."""
        return not self.control.is_shared

    @property
    def is_initialised(self) -> bool:
        """Whether its memory is allocated, here or in another process that shares it."""
        self._look_again()
        return self.schema is not None

    @property
    def ring(self) -> Ring:
        """The ring, which tells which columns can be read."""
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
        told = schema if self._takes_first_device else replace(schema, device=self.device)
        with self.control.lock:
            if self.control.schema is None:
                self._take(told, self._allocate)
                self.control.note_schema(told)
        assert self.is_initialised

    def _take(self, schema: Schema, make: Any) -> None:
        rows = math.prod(schema.rows)
        capacity = self._columns_for(rows)
        if rows > self.max_size:
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
        capacity = self._columns_for(self.rows)
        self._ring = Ring(self.control, capacity)
        self._leaves = {key: Leaf(leaf, self.ndim) for key, leaf in leaves.items()}
        self.validity = validity_in(self._leaves, schema.fields, self.ndim, self.control)
        objects = [key for key, field in schema.fields.items() if field.is_object]
        self._objects = {key: np.full((self.rows, capacity), None, object) for key in objects}

    def _columns_for(self, rows: int) -> int:
        """Number of columns for this number of rows and `max_size` frames."""
        return -(-self.max_size // rows)

    @property
    def places_noted(self) -> int:
        """Number of places whose origin is kept; see `StorageCore`."""
        return self.rows * self._ring.capacity

    def _unmapped(self) -> dict[str, Any]:
        """Its attributes for a process that maps the memory itself."""
        mapped = {"schema": None, "_accepted": None, "_leaves": {}, "_objects": {}, "_ring": None, "validity": None}
        return {**vars(self), **mapped, "_nexts": self._nexts.fresh()}

    def _map_later(self) -> None:
        """Stay empty until `_look_again` maps the memory."""
        self._ring, self.rows = Ring(self.control, self.max_size), 1

    # ------------------------------------------------------------------ form

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The dimensions of the rows in `contents()`."""
        return self._known().rows

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of its frames; none before the first write."""
        return tuple(self.schema.fields) if self.is_initialised and self.schema else ()

    def _known(self) -> Schema:
        if not self.is_initialised or self.schema is None:
            raise CallOrderError("replay buffer: expected something to be written to it first, found it empty")
        return self.schema

    @property
    def item_dims(self) -> int:
        """Number of batch dimensions of one item; see `Storage`."""
        return len(self.schema.item) if self.is_initialised and self.schema else 0

    @property
    def classes(self) -> Mapping[str, Any]:
        """The tensorclasses and named tuples in its data, by name."""
        return self.schema.classes() if self.is_initialised and self.schema else {}

    @property
    def new_keys_refused(self) -> str:
        """The reason why frames cannot get new keys after the first write; empty if they can."""
        return f"{self.place} are laid out at the first write, which has to have them"

    def add_fields(self, fields: Mapping[Key, Field]) -> None:
        """Add keys to all frames, filled with zeros; see `new_keys_refused`."""
        schema, lead = self._known(), (*self.row_shape, self._ring.capacity)
        layout = Layout({key: field.lead(*lead) for key, field in fields.items() if not field.is_object})
        with self.control.lock:
            made = {key: Leaf(leaf, self.ndim) for key, leaf in self._allocate(layout, lead).items()}
            empty = {key: np.full((self.rows, lead[-1]), None, object) for key, field in fields.items() if field.is_object}
            self._leaves, self._objects = self._leaves | made, self._objects | empty
            self.schema = replace(schema, fields={**schema.fields, **fields})
            self._accepted = None
            self.validity = validity_in(self._leaves, self.schema.fields, self.ndim, self.control)
            self.control.note_schema(self.schema)
