"""Data on the way into a buffer: `together` and `whole` make one batch of the user's data, `leaves_of` splits it into leaves.

TensorDict, tensorclass, Tensor  --leaves_of-->  {key: tensor [*batch, *item]}  --Schema.rebuilt-->  the same kind
dict, tuple, list (a Tree)

Data other than TensorDicts are converted once, on input (`together`, `whole`); after that, all are leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor, is_tensorclass, lazy_stack
from torch import Tensor

from reap.data.storages.trees import Form, Tree, as_leaf, dense, is_container, is_same_class, tree_of
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, plain
from reap.recording.layout import OBJECT, Field

Leaves = dict[Key, Any]
"""Tensors `[*batch, *item]` by key, and stacks of objects `[*batch]`."""

WHOLE: Key = ("data",)
"""The key of data that are a single tensor."""


class Items(list[Any]):
    """Items of any kind, one after the other."""

    ndim = 1

    @property
    def shape(self) -> tuple[int]:
        """Their number."""
        return (len(self),)


def words_of(field: Field) -> str:
    """A description of a field."""
    return "objects" if field.is_object else f"{tuple(field.shape)} {field.dtype}"


def name_of(kind: Any) -> str:
    """A description of a kind."""
    return str(kind) if isinstance(kind, Form) else kind.__name__


def is_same_kind(one: Any, other: Any) -> bool:
    """Whether two kinds are the same."""
    if one is other or isinstance(one, Form) or isinstance(other, Form):
        return one == other
    return is_same_class(one, other)


def kind_of(data: Any) -> Any:
    """The kind of data: `TensorDict`, `Tensor`, a tensorclass, or the form of a `Tree`.

    Raises:
        SpecMismatch: anything else.
    """
    if isinstance(data, TensorDictBase):
        return TensorDict
    if isinstance(data, Tensor):
        return Tensor
    if is_tensorclass(data):
        return type(data)
    if isinstance(data, Tree):
        return data.form
    raise SpecMismatch(
        f"replay buffer: expected a TensorDict, a tensorclass or a tensor, got {type(data).__name__}: {data!r:.100}; dicts, "
        "tuples and lists of tensors will do too"
    )


def together(data: Any, dims: int) -> Any:
    """Several of the user's items as one batch; those in a list are stacked along a new first dimension.

    Args:
        data: `[*batch, *item]`, or a list of `[*batch[1:], *item]`.
        dims: dimensions of the batch.

    Raises:
        SpecMismatch: items of several kinds, shapes or dtypes, no items, or unsupported data.
    """
    if isinstance(data, LazyStackedTensorDict):
        _require_alike(data.tensordicts, 0, "stack")
    if isinstance(data, TensorDictBase | Tensor):
        return data
    if not isinstance(data, list):
        return whole(data, dims)
    if not data:
        raise SpecMismatch("replay buffer: expected at least one item, got an empty list")
    items = [whole(item, dims - 1) for item in data]
    _require_alike(items, dims - 1, "list")
    if isinstance(items[0], Tensor):
        return torch.stack(items)
    if not isinstance(items[0], Tree):
        return lazy_stack(items)
    leaves = {key: torch.stack([item.leaves[key] for item in items]) for key in items[0].leaves}
    return Tree(items[0].form, leaves, dims)


def whole(data: Any, dims: int) -> Any:
    """The user's data: dicts, tuples and lists as a `Tree`, arrays and numbers as a tensor.

    Args:
        data: `[*batch, *item]`.
        dims: dimensions of the batch.

    Raises:
        SpecMismatch: unsupported data.
    """
    if is_container(data):
        return tree_of(data, dims)
    return as_leaf(data) if isinstance(data, np.ndarray | np.generic | int | float) else data


def as_given(data: Any) -> Any:
    """The result of `together` or `whole` in the form that is passed to the user's functions."""
    return data.joined() if isinstance(data, Tree) else data


def _require_alike(items: Sequence[Any], dims: int, whole: str) -> None:
    """Raise SpecMismatch for items that cannot be stacked into a tensor unchanged."""
    first, fields = kind_of(items[0]), fields_of(leaves_of(items[0]), dims)
    for number, item in enumerate(items[1:], start=1):
        kind, leaves = kind_of(item), leaves_of(item)
        if not is_same_kind(kind, first):
            raise SpecMismatch(
                f"replay buffer: item {number} of a {whole}: expected a {name_of(first)}, as item 0 is, got a {name_of(kind)}; "
                "nothing was written"
            )
        found = fields_of(leaves, dims)
        if found == fields:
            continue
        key = next(key for key in {**fields, **found} if fields.get(key) != found.get(key))
        was, now = (words_of(one[key]) if key in one else "nothing" for one in (fields, found))
        raise SpecMismatch(
            f"replay buffer: expected values of one shape in every item: item {number} of a {whole}: {plain(key)!r}: expected "
            f"{was}, as item 0 has, got {now}; nothing was written"
        )


def leaves_of(data: Any) -> Leaves:
    """The leaves of data, by key, detached from autograd.

    Raises:
        SpecMismatch: entries whose shapes differ, which no tensor can hold; tensors that are not dense, or without values.
    """
    if isinstance(data, Tensor):
        return {WHOLE: dense(data)}
    if isinstance(data, Tree):
        return data.leaves
    node = data if isinstance(data, TensorDictBase) else data._tensordict  # pyright: ignore[reportPrivateUsage]
    return dict(_walk(node, ()))


def _walk(node: Any, path: Key) -> Iterator[tuple[Key, Any]]:
    entries = node._tensordict if type(node) is TensorDict else node  # pyright: ignore[reportPrivateUsage]
    try:
        for name, value in entries.items():
            key = (*path, name)
            if isinstance(value, Tensor):
                yield key, dense(value, key)
            elif is_non_tensor(value):
                yield key, value
            elif is_tensorclass(value):
                yield from _walk(value._tensordict, key)
            else:
                yield from _walk(value, key)
    except SpecMismatch:
        raise
    except RuntimeError as error:
        raise SpecMismatch(
            f"replay buffer: expected values of one shape in every item: {error}; nothing was written"
        ) from error


def fields_of(leaves: Leaves, dims: int) -> dict[Key, Field]:
    """Shape and dtype of one item's value for each key.

    Args:
        leaves: values `[*batch, *item]`.
        dims: number of batch dimensions.
    """
    return {
        key: Field(tuple(value.shape[dims:]), value.dtype) if isinstance(value, Tensor) else OBJECT
        for key, value in leaves.items()
    }


def checked_device(device: Any) -> torch.device:
    """The device of this name, checked to hold data.

    Raises:
        OptionError: there is no such device.
    """
    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"device: expected 'cpu' or 'cuda', got {device!r}") from error
    if checked.type == "meta":
        raise OptionError("device: expected 'cpu' or 'cuda', got 'meta', which holds no data")
    return checked


def device_of(leaves: Leaves) -> torch.device:
    """The device of data: that of their first tensor."""
    return next((value.device for value in leaves.values() if isinstance(value, Tensor)), torch.device("cpu"))


def require_device(leaves: Leaves, device: torch.device) -> None:
    """Raise SpecMismatch for tensors on another kind of device than this one."""
    devices = {value.device for value in leaves.values() if isinstance(value, Tensor)} - {device}
    if any(other.type != device.type for other in devices):
        raise SpecMismatch(
            f"replay buffer: expected data on {device}, where the storage is, got {', '.join(map(str, devices))}; write "
            f"data.to({str(device)!r})"
        )
