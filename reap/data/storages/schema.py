"""`Schema`: the form of a buffer's items; rebuilds data from leaves, and refuses data of another form."""

from __future__ import annotations

import pickle
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from reap.data.dtypes import dtype_named
from reap.data.storages.items import WHOLE, Leaves, fields_of, is_same_kind, kind_of, name_of, words_of
from reap.data.storages.trees import Form, Tree, form_from
from reap.errors import SpecMismatch
from reap.keys import NO_SIZES, Key, Sizes, nested, plain
from reap.recording.layout import OBJECT, Array, Field, sizes_of
from reap.recording.objects import fill
from reap.tensordicts import make_tensordict, sizes_in
from reap.workers.pickling import pickled


@dataclass(frozen=True)
class Schema:
    """The form of one item.

    Attributes:
        kind: `TensorDict`, `Tensor`, a tensorclass, or the form of dicts, tuples and lists.
        fields: shape and dtype of one item's value under each key.
        rows: batch dimensions before time; none for a buffer of one dimension.
        item: batch dimensions of one item, after time: `(T,)` if each is a trajectory.
        device: the `device` attribute of TensorDicts.
    """

    kind: Any
    fields: Mapping[Key, Field]
    rows: tuple[int, ...]
    item: tuple[int, ...] = ()
    device: torch.device | None = None

    @cached_property
    def sizes(self) -> Sizes:
        """The batch dimensions of an item, and those of the TensorDicts nested in it."""
        return sizes_of(self.fields)

    def rebuilt(self, leaves: Mapping[Key, Any], batch_size: torch.Size) -> Any:
        """Rebuild data of this kind from leaves `[*batch_size, *item, ...]`."""
        if self.kind is Tensor:
            return leaves[WHOLE]
        if isinstance(self.kind, Form):
            return self.kind.joined(leaves)
        data = make_tensordict(nested(leaves, self.sizes), batch_size, device=self.device)
        return data if self.kind is TensorDict else self.kind.from_tensordict(data)

    def at(self, leaves: Mapping[Key, Any], batch_size: torch.Size, index: Any) -> Any:
        """The data at any batch index that a tensor accepts."""
        if not isinstance(self.kind, Form):
            return self.rebuilt(leaves, batch_size)[index]
        return Tree(self.kind, leaves, len(batch_size))[index].joined()

    def classes(self) -> dict[str, Any]:
        """The classes in data other than those of torch, tensordict and Python, by name."""
        if isinstance(self.kind, Form):
            return self.kind.classes()
        return {} if self.kind in {TensorDict, Tensor} else {self.kind.__name__: self.kind}

    def with_classes_of(self, kind: Any) -> Schema:
        """The same schema with the classes of an equal kind: this process's own, not copies of them."""
        if not isinstance(kind, Form):
            return replace(self, kind=kind)
        if not isinstance(self.kind, Form):
            return self
        own = kind.classes()
        return replace(self, kind=self.kind.with_classes(lambda one: own.get(one.__name__, one)))

    def __reduce__(self) -> tuple[Any, ...]:
        parts = [getattr(self, field.name) for field in fields(self)]
        return _unpickled, (zlib.compress(pickled(parts)),)

    def state(self) -> dict[str, Any]:
        """The schema as plain data; see `schema_from`."""
        return {
            "kind": self.kind.state() if isinstance(self.kind, Form) else self.kind.__name__,
            "fields": {
                key: [list(field.shape), str(field.dtype), field.is_object, list(field.batch_dims)]
                for key, field in self.fields.items()
            },
            "rows": list(self.rows),
            "item": list(self.item),
            "has_device": self.device is not None,
        }

    def described(self) -> str:
        """A description of it."""
        fields = ", ".join(f"{plain(key)!r}: {words_of(field)}" for key, field in self.fields.items())
        return f"{name_of(self.kind)} of rows {list(self.rows)} with {{{fields}}}"

    def check(self, kind: Any, leaves: Leaves, dims: int) -> None:
        """Raise SpecMismatch unless data are of the same kind, with the same keys, shapes and dtypes.

        Args:
            kind: their kind.
            leaves: their leaves.
            dims: their batch dimensions.
        """
        if self.kind is TensorDict and isinstance(kind, Form) and kind.is_of_dicts:
            kind = TensorDict  # dicts make TensorDicts in a buffer that holds these
        if not is_same_kind(kind, self.kind):
            raise SpecMismatch(
                f"replay buffer: expected a {name_of(self.kind)}, as it holds, got a {name_of(kind)}; nothing was written"
            )
        fields = fields_of(leaves, dims)
        if fields == self.fields:
            return
        missing = [plain(key) for key in self.fields if key not in fields]
        surplus = [plain(key) for key in fields if key not in self.fields]
        if missing or surplus:
            raise SpecMismatch(
                f"replay buffer: expected the keys of the first write; missing {missing}, new {surplus}; nothing was written. "
                "Drop or add keys before the write, or use another buffer"
            )
        for key, field in fields.items():
            if field != self.fields[key]:
                raise SpecMismatch(
                    f"replay buffer: {plain(key)!r}: expected {words_of(self.fields[key])} for each item, as in the first "
                    f"write, got {words_of(field)}; nothing was written"
                )

    def check_state(self, own: Schema | None, columns: int, frames: Mapping[Key, Tensor]) -> None:
        """Raise SpecMismatch unless the frames of a state fit its own schema, and the storage that loads them.

        Args:
            own: the schema of the storage that loads them; None if it holds nothing yet.
            columns: number of columns of each.
            frames: `[*rows, columns, *item]` under each key.
        """
        if own is not None and (self.kind, self.fields, self.rows) != (own.kind, own.fields, own.rows):
            raise SpecMismatch(
                f"replay buffer: expected the state of a storage that holds {own.described()}, got {self.described()}; "
                "nothing was changed"
            )
        for key, field in self.fields.items():
            shape = torch.Size((*self.rows, columns, *field.shape))
            if not field.is_object and (frames[key].shape, frames[key].dtype) != (shape, field.dtype):
                raise SpecMismatch(
                    f"replay buffer: {plain(key)!r}: expected {list(shape)} {field.dtype} in the state, got "
                    f"{list(frames[key].shape)} {frames[key].dtype}; nothing was changed"
                )


def _unpickled(noted: bytes) -> Schema:
    """The pickled schema, with local classes by value, because other processes cannot find them by name."""
    schema = Schema(*pickle.loads(zlib.decompress(noted)))
    if not isinstance(schema.kind, Form):
        return replace(schema, kind=_own(schema.kind))
    return replace(schema, kind=schema.kind.with_classes(_own))


def _own(kind: Any) -> Any:
    """This process's version of a class from the main script, which spawned processes have too."""
    if kind.__module__ != "__main__":
        return kind
    found = getattr(sys.modules["__main__"], kind.__qualname__, kind)
    return found if isinstance(found, type) else kind


def schema_of(data: Any, leaves: Leaves, dims: int) -> Schema:
    """The schema of data.

    Args:
        data: `[*rows, columns, *item]`.
        leaves: their leaves.
        dims: dimensions of rows and columns.

    Raises:
        SpecMismatch: items that have batch dimensions and hold Python objects.
    """
    kind, found, rows = kind_of(data), fields_of(leaves, dims), tuple(data.shape[: dims - 1])
    if kind is Tensor or isinstance(kind, Form):
        return Schema(kind, found, rows)
    item, objects = tuple(data.shape[dims:]), [plain(key) for key, field in found.items() if field.is_object]
    if item and objects:
        raise SpecMismatch(
            f"replay buffer: expected items without batch dimensions where they hold Python objects ({objects}), got items "
            f"{list(item)}; write frames one by one (reshape(-1), or ndim={dims + len(item)}), or use a ListStorage"
        )
    sizes = sizes_in(data, dims)
    for key, field in found.items():
        batch_dims = tuple(len(sizes.get(key[:end], ())) for end in range(len(key) - 1, -1, -1))
        found[key] = replace(field, batch_dims=batch_dims if any(batch_dims) else ())
    return Schema(kind, found, rows, item, data.device)


def schema_from(state: Mapping[str, Any], known: Mapping[str, Any], device: torch.device) -> Schema:
    """The schema with this `state`.

    Args:
        state: a result of `Schema.state`.
        known: the classes in data here, by name.
        device: the device of the data.

    Raises:
        SpecMismatch: data of another class.
    """
    noted = state["kind"]
    if isinstance(noted, str):
        kind = {"TensorDict": TensorDict, "Tensor": Tensor}.get(noted) or known_class(noted, known)
    else:
        kind = form_from(noted, partial(known_class, known=known, what="named tuple"))
    fields = fields_from(state)
    rows, item = tuple(state["rows"]), tuple(state["item"])
    return Schema(kind, fields, rows, item, device if state["has_device"] else None)


def fields_from(state: Mapping[str, Any]) -> dict[Key, Field]:
    """The fields in a `state` of a schema."""
    return {
        key: OBJECT if is_object else Field(tuple(shape), dtype_named(dtype), batch_dims=tuple(*batch_dims))
        for key, (shape, dtype, is_object, *batch_dims) in state["fields"].items()
    }


def sizes_from(state: Mapping[str, Any]) -> Sizes:
    """The batch dimensions of items, and of the TensorDicts nested in them, in the `state` of a storage."""
    noted = state.get("schema")
    return sizes_of(fields_from(noted)) if noted else NO_SIZES


def objects_of(schema: Schema | None, columns: int, states: Mapping[Key, Any]) -> dict[Key, Array]:
    """The objects of a state, `[rows, columns]` under each key.

    Raises:
        SpecMismatch: they differ from the schema's.
    """
    keys = [key for key, field in schema.fields.items() if field.is_object] if schema else []
    if set(states) != set(keys):
        raise SpecMismatch(f"replay buffer: expected objects of {keys} in the state, got {list(states)}; nothing was changed")
    objects = {key: np.full((prod(schema.rows) if schema else 1, columns), None, object) for key in keys}
    for key, held in objects.items():
        fill(held, states[key])
    return objects


def known_class(name: str, known: Mapping[str, Any], what: str = "tensorclass") -> Any:
    """The class of this name among those that are known.

    Raises:
        SpecMismatch: it is unknown; a state does not contain the code of classes.
    """
    if name not in known:
        raise SpecMismatch(
            f"replay buffer: the state is that of a buffer of {name}, a {what}, and a state loads no classes; write one item "
            "of it to this buffer first, then load"
        )
    return known[name]
