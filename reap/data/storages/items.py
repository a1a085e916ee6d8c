"""What a buffer holds: `Schema` says what an item consists of, `leaves_of` takes data apart, `Schema.rebuilt` joins them.

TensorDict, tensorclass, Tensor  --leaves_of-->  {key: tensor [*batch, *item]}  --rebuilt-->  the same kind
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor, is_tensorclass, lazy_stack
from torch import Tensor

from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, nested, plain
from reap.layout import OBJECT, Field
from reap.tensordicts import make_tensordict

Leaves = dict[Key, Any]
"""Tensors `[*batch, *item]` by key, and stacks of objects `[*batch]`."""

WHOLE: Key = ("data",)
"""The key of data that are one tensor."""


class Items(list[Any]):
    """Items of any kind, one behind the other."""

    ndim = 1

    @property
    def shape(self) -> tuple[int]:
        """How many there are."""
        return (len(self),)


@dataclass(frozen=True)
class Schema:
    """What one item consists of.

    Attributes:
        kind: `TensorDict`, `Tensor`, or a tensorclass.
        fields: shape and dtype of one item's value under each key.
        rows: batch dimensions that stand before time; none for a buffer of one dimension.
        item: batch dimensions of one item, behind time: `(T,)` where each is a trajectory.
        device: what the data gave as their device.
    """

    kind: Any
    fields: Mapping[Key, Field]
    rows: tuple[int, ...]
    item: tuple[int, ...] = ()
    device: torch.device | None = None

    def rebuilt(self, leaves: Mapping[Key, Any], batch_size: torch.Size) -> Any:
        """Data of this kind from leaves `[*batch_size, *item, ...]`."""
        if self.kind is Tensor:
            return leaves[WHOLE]
        data = make_tensordict(nested(leaves), torch.Size((*batch_size, *self.item)), device=self.device)
        return data if self.kind is TensorDict else self.kind.from_tensordict(data)

    def state(self) -> dict[str, Any]:
        """It as plain data; see `schema_from`."""
        return {
            "kind": self.kind.__name__,
            "fields": {key: [list(field.shape), str(field.dtype), field.is_object] for key, field in self.fields.items()},
            "rows": list(self.rows),
            "item": list(self.item),
            "has_device": self.device is not None,
        }

    def described(self) -> str:
        """It in words."""
        fields = ", ".join(f"{plain(key)!r}: {_words(field)}" for key, field in self.fields.items())
        return f"{self.kind.__name__} of rows {list(self.rows)} with {{{fields}}}"

    def check(self, kind: Any, leaves: Leaves, dims: int) -> None:
        """Raise SpecMismatch unless data are of the same kind, with the same keys, shapes and dtypes.

        Args:
            kind: their kind.
            leaves: their leaves.
            dims: their batch dimensions.
        """
        if kind is not self.kind:
            raise SpecMismatch(f"replay buffer: expected a {self.kind.__name__}, as it holds, got a {kind.__name__}")
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
                    f"replay buffer: {plain(key)!r}: expected {_words(self.fields[key])} for each item, as in the first write, "
                    f"got {_words(field)}; nothing was written"
                )


def _words(field: Field) -> str:
    return "objects" if field.is_object else f"{tuple(field.shape)} {field.dtype}"


def kind_of(data: Any) -> Any:
    """`TensorDict`, `Tensor`, or the tensorclass of data.

    Raises:
        SpecMismatch: something else.
    """
    if isinstance(data, TensorDictBase):
        return TensorDict
    if isinstance(data, Tensor):
        return Tensor
    if is_tensorclass(data):
        return type(data)
    raise SpecMismatch(
        f"replay buffer: expected a TensorDict, a tensorclass or a tensor, got {type(data).__name__}: {data!r:.100}"
    )


def together(data: Any) -> Any:
    """Items in a list, stacked along a new first dimension; a dictionary as a TensorDict without batch dimensions."""
    if isinstance(data, dict):
        return TensorDict(data)
    if not isinstance(data, list | tuple):
        return data
    items: Sequence[Any] = [together(item) for item in data]
    if not items:
        raise SpecMismatch("replay buffer: expected at least one item, got an empty list")
    return torch.stack(list(items)) if isinstance(items[0], Tensor) else lazy_stack(list(items))


def leaves_of(data: Any) -> Leaves:
    """The leaves of data, by key, without their graph.

    Raises:
        SpecMismatch: entries whose shapes differ, which no tensor can hold.
    """
    if isinstance(data, Tensor):
        return {WHOLE: data.detach()}
    node = data if isinstance(data, TensorDictBase) else data._tensordict  # pyright: ignore[reportPrivateUsage]
    return dict(_walk(node, ()))


def _walk(node: Any, path: Key) -> Iterator[tuple[Key, Any]]:
    entries = node._tensordict if type(node) is TensorDict else node  # pyright: ignore[reportPrivateUsage]
    try:
        for name, value in entries.items():
            key = (*path, name)
            if isinstance(value, Tensor):
                yield key, value.detach() if value.requires_grad else value
            elif is_non_tensor(value):
                yield key, value
            elif is_tensorclass(value):
                yield from _walk(value._tensordict, key)
            else:
                yield from _walk(value, key)
    except RuntimeError as error:
        raise SpecMismatch(
            f"replay buffer: expected values of one shape in every item: {error}; nothing was written"
        ) from error


def fields_of(leaves: Leaves, dims: int) -> dict[Key, Field]:
    """Shape and dtype of one item's value under each key.

    Args:
        leaves: values `[*batch, *item]`.
        dims: how many dimensions are the batch's.
    """
    return {
        key: Field(tuple(value.shape[dims:]), value.dtype) if isinstance(value, Tensor) else OBJECT
        for key, value in leaves.items()
    }


def schema_of(data: Any, leaves: Leaves, dims: int) -> Schema:
    """What one item of data consists of.

    Args:
        data: `[*rows, columns, *item]`.
        leaves: their leaves.
        dims: dimensions of rows and columns.

    Raises:
        SpecMismatch: items with batch dimensions of their own that hold Python objects.
    """
    kind, fields, rows = kind_of(data), fields_of(leaves, dims), tuple(data.shape[: dims - 1])
    if kind is Tensor:
        return Schema(kind, fields, rows)
    item, objects = tuple(data.shape[dims:]), [plain(key) for key, field in fields.items() if field.is_object]
    if item and objects:
        raise SpecMismatch(
            f"replay buffer: expected items without batch dimensions where they hold Python objects ({objects}), got items "
            f"{list(item)}; write frames one by one (reshape(-1), or ndim={dims + len(item)}), or use a ListStorage"
        )
    return Schema(kind, fields, rows, item, data.device)


def schema_from(state: Mapping[str, Any], known: Any, device: torch.device) -> Schema:
    """The schema of which this is the `state`.

    Args:
        state: what `Schema.state` returned.
        known: the tensorclass that data here are of, if they are.
        device: where data lie.

    Raises:
        SpecMismatch: data of another tensorclass.
    """
    kinds = {"TensorDict": TensorDict, "Tensor": Tensor}
    kind = kinds.get(state["kind"]) or checked_class(state["kind"], known)
    fields = {
        key: OBJECT if is_object else Field(tuple(shape), dtype_named(dtype))
        for key, (shape, dtype, is_object) in state["fields"].items()
    }
    rows, item = tuple(state["rows"]), tuple(state["item"])
    return Schema(kind, fields, rows, item, device if state["has_device"] else None)


def check_saved(saved: Schema, own: Schema | None, columns: int, frames: Mapping[Key, Tensor]) -> None:
    """Raise SpecMismatch for frames that are not what the schema of a state says, or that of a storage.

    Args:
        saved: the schema of the state.
        own: that of the storage, if it holds something.
        columns: columns in the state.
        frames: the values of each key, `[*rows, columns, *item]`.
    """
    if own is not None and (saved.kind, saved.fields, saved.rows) != (own.kind, own.fields, own.rows):
        raise SpecMismatch(
            f"replay buffer: expected the state of a storage that holds {own.described()}, got {saved.described()}; "
            "nothing was changed"
        )
    for key, field in saved.fields.items():
        shape = torch.Size((*saved.rows, columns, *field.shape))
        if not field.is_object and (frames[key].shape, frames[key].dtype) != (shape, field.dtype):
            raise SpecMismatch(
                f"replay buffer: {plain(key)!r}: expected {list(shape)} {field.dtype} in the state, got "
                f"{list(frames[key].shape)} {frames[key].dtype}; nothing was changed"
            )


def checked_class(name: str, known: Any) -> Any:
    """The tensorclass of this name, which is the known one.

    Raises:
        SpecMismatch: it is not: nothing in a state says which code a class is.
    """
    if known is None or known.__name__ != name:
        raise SpecMismatch(
            f"replay buffer: the state is that of a buffer of {name}, a tensorclass, and a state loads no classes; write one "
            "item of it to this buffer first, then load"
        )
    return known


def dtype_named(name: str) -> torch.dtype:
    """The dtype of a name like `"torch.float32"`.

    Raises:
        SpecMismatch: there is none.
    """
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise SpecMismatch(f"expected the name of a dtype, got {name!r}")
    return dtype


def checked_device(device: Any) -> torch.device:
    """The device of this name, one that can hold data.

    Raises:
        OptionError: there is none.
    """
    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"device: expected 'cpu' or 'cuda', got {device!r}") from error
    if checked.type == "meta":
        raise OptionError("device: expected 'cpu' or 'cuda', got 'meta', which holds no data")
    return checked
