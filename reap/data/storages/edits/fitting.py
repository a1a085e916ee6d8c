"""Fits data to the frames that they overwrite: broadcast, cast, and completed with existing values.

buffer[2:5] = TensorDict({"reward": 0.0}, [])      [] -> [3], float64 -> float32; all other keys stay
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from reap.data.storages.items import WHOLE, Leaves, fields_of, is_same_kind, kind_of, leaves_of, name_of, words_of
from reap.data.storages.schema import Schema
from reap.data.storages.trees import Form, Tree
from reap.errors import SpecMismatch
from reap.keys import Key, NestedKey, plain
from reap.recording.layout import Field
from reap.recording.objects import stacked
from reap.specs.tensor_fits import NUMBERS, tensor_as_dtype, unreadable_kind


class EditedStore(Protocol):
    """A storage whose frames are overwritten."""

    @property
    def schema(self) -> Schema | None:
        """The form of a frame."""
        ...

    @property
    def new_keys_refused(self) -> str:
        """The reason why frames cannot get new keys; empty if they can."""
        ...

    def take(self, places: Tensor) -> Leaves:
        """Copies of the frames at places `[B]`."""
        ...

    def add_fields(self, fields: Mapping[Key, Field]) -> None:
        """Add keys to all frames, filled with zeros."""
        ...


def fitted(storage: EditedStore, places: Tensor, data: Any) -> Any:
    """Data for places, in the storage's form.

    Args:
        storage: the storage, to which new keys are added.
        places: `[*batch]`.
        data: `[*batch, *item]`, or fewer dimensions, which are broadcast. A TensorDict may lack keys.

    Returns:
        The data `[B, *item]`.

    Raises:
        SpecMismatch: they do not fit; nothing is changed.
    """
    schema = storage.schema
    assert schema is not None
    kind, leaves = kind_of(data), leaves_of(data)
    if schema.kind is TensorDict and isinstance(kind, Form) and kind.is_of_dicts:
        kind = TensorDict
    if not is_same_kind(kind, schema.kind):
        raise SpecMismatch(
            f"replay buffer: expected a {name_of(schema.kind)}, as it holds, got a {name_of(kind)}; nothing was changed"
        )
    dims = _batch_dims(data, leaves, schema)
    given = {key: _spread(key, value, data.shape, dims, places, schema.fields.get(key)) for key, value in leaves.items()}
    if schema.kind is TensorDict:
        new = {key: field for key, field in fields_of(given, 1).items() if key not in schema.fields}
        if new:
            if storage.new_keys_refused:
                raise SpecMismatch(
                    f"replay buffer: new keys {[*map(plain, new)]}: {storage.new_keys_refused}; nothing was changed"
                )
            storage.add_fields(new)
            schema = storage.schema
            assert schema is not None
        given = _completed(storage, schema, places.reshape(-1), given)
    if isinstance(data, Tree):
        return Tree(data.form, given, 1)
    return schema.rebuilt(given, torch.Size((places.numel(),)))


def under_key(key: NestedKey, value: Any, batch_size: torch.Size) -> TensorDict:
    """Values of frames under one key, or one value for all of them."""
    shape = tuple(getattr(value, "shape", ()))
    return TensorDict({key: value}, batch_size if shape[: len(batch_size)] == tuple(batch_size) else [])


def _batch_dims(data: Any, leaves: Leaves, schema: Schema) -> int:
    """The number of batch dimensions of the data."""
    if isinstance(data, Tensor):
        return max(0, data.ndim - len(schema.fields[WHOLE].shape))
    item = 0 if isinstance(data, Tree) else len(schema.item)
    return max(0, data.ndim - item) if leaves else 0


def _spread(key: Key, value: Any, shape: Any, dims: int, places: Tensor, field: Field | None) -> Any:
    """The values for all places, `[B, *item]`, with the dtype that the storage keeps."""
    batch = tuple(places.shape)
    if not isinstance(value, Tensor) or (field is not None and field.is_object):
        if tuple(value.shape[: len(batch)]) != batch:
            raise _misfit(batch, shape)
        return value.flatten(0, len(batch) - 1) if len(batch) > 1 else value
    lead, own = tuple(value.shape[:dims]), tuple(value.shape[dims:])
    item = own if field is None else tuple(field.shape)
    lead, own = _without_ones(lead, len(batch)), _without_ones(own, len(item))
    if not _fits(lead, batch):
        raise _misfit(batch, shape)
    if value.is_meta:
        raise SpecMismatch(f"replay buffer: {plain(key)!r}: expected {NUMBERS}, found {unreadable_kind(value)}")
    dtype = value.dtype if field is None else field.dtype
    fitting = tensor_as_dtype(value, dtype) if _fits(own, item) else None
    if fitting is None:
        lost = ", with values that it does not hold" if _fits(own, item) and torch.can_cast(value.dtype, dtype) else ""
        raise SpecMismatch(
            f"replay buffer: {plain(key)!r}: expected {words_of(Field(item, dtype))} for each item, as in the first write, got "
            f"{words_of(Field(own, value.dtype))}{lost}; nothing was changed"
        )
    spread = fitting.reshape((*lead, *[1] * (len(item) - len(own)), *own)).expand((*batch, *item))
    return spread.reshape((places.numel(), *item)).to(dtype)


def _without_ones(shape: tuple[int, ...], dims: int) -> tuple[int, ...]:
    """A shape without first dimensions of 1 beyond this number of dimensions."""
    while len(shape) > dims and shape[0] == 1:
        shape = shape[1:]
    return shape


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether this shape can be broadcast to another."""
    return len(shape) <= len(whole) and all(
        one in {1, other} for one, other in zip(reversed(shape), reversed(whole), strict=False)
    )


def _misfit(batch: tuple[int, ...], shape: Any) -> SpecMismatch:
    return SpecMismatch(f"replay buffer: expected data {list(batch)} for this index, got {list(shape)}; nothing was changed")


def _completed(storage: EditedStore, schema: Schema, places: Tensor, given: Leaves) -> Leaves:
    """The values, with those that the frames hold under the other keys."""
    if all(key in given for key in schema.fields):
        return {key: given[key] for key in schema.fields}
    held = storage.take(places)
    kept = {key: stacked(value) if schema.fields[key].is_object else value for key, value in held.items()}
    return {key: given.get(key, kept.get(key)) for key in schema.fields}
