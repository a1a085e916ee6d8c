"""Arbitrarily nested dicts, tuples and lists of tensors ("pytrees"): splits them into leaves, and joins leaves again.

    {"obs": x, "pair": (y, [z])}  --tree_of-->  leaves  {("obs",): x, ("pair", "0"): y, ("pair", "1", "0"): z}
                                                form    dict(obs, pair=tuple(_, list(_)))

Leaves have keys like those of a TensorDict, which name files, and by which writers and samplers find values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_tensorclass
from torch import Tensor

from reap.errors import SpecMismatch
from reap.keys import Key, nested, plain
from reap.specs.tensor_fits import NUMBERS, unreadable_kind
from reap.tensordicts import make_tensordict

ONE_BATCH = (
    "A dict or a tuple is one batch, whose tensors have their first dimensions in common; items one by one come in a list"
)

Numbers = bool | int | float | complex | np.generic


@dataclass(eq=False)
class Form:
    """The structure in which leaves are joined.

    Attributes:
        kind: `dict`, `tuple`, `list`, the class of a named tuple, or `Tensor` for a leaf.
        names: the names of the parts; none for a leaf.
        parts: the form of each.
    """

    kind: Any
    names: tuple[Any, ...] = ()
    parts: tuple[Form, ...] = ()

    def joined(self, leaves: Mapping[Key, Any], path: Key = ()) -> Any:
        """The leaves under a path, in this form."""
        if self.kind is Tensor:
            return leaves[path]
        values = [part.joined(leaves, (*path, str(name))) for name, part in zip(self.names, self.parts, strict=True)]
        if self.kind is dict:
            return dict(zip(self.names, values, strict=True))
        return self.kind(*values) if is_named(self.kind) else self.kind(values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Form) or not is_same_class(self.kind, other.kind):
            return False
        own, theirs = (dict(zip(form.names, form.parts, strict=True)) for form in (self, other))
        return own == theirs  # whatever the order of the names in a dict

    __hash__ = None  # pyright: ignore[reportAssignmentType]  as of what has an equality of its own

    @property
    def is_of_dicts(self) -> bool:
        """Whether it consists only of dicts with string keys, like a TensorDict."""
        if self.kind is not dict:
            return self.kind is Tensor
        return all(isinstance(name, str) for name in self.names) and all(part.is_of_dicts for part in self.parts)

    def classes(self) -> dict[str, Any]:
        """The classes of named tuples in it, by name."""
        own = {self.kind.__name__: self.kind} if is_named(self.kind) else {}
        return {name: kind for part in self.parts for name, kind in part.classes().items()} | own

    def with_classes(self, change: Callable[[Any], Any]) -> Form:
        """The same with other classes."""
        return Form(change(self.kind), self.names, tuple(part.with_classes(change) for part in self.parts))

    def state(self) -> dict[str, Any]:
        """The form as plain data; see `form_from`."""
        return {"kind": self.kind.__name__, "names": list(self.names), "parts": [part.state() for part in self.parts]}

    def __str__(self) -> str:
        if self.kind is Tensor:
            return "Tensor"
        pairs = zip(self.names, map(str, self.parts), strict=True)
        inner = ", ".join(f"{name!r}: {part}" if self.kind is dict else part for name, part in pairs)
        return f"{self.kind.__name__}({inner})"


LEAF = Form(Tensor)

_KINDS: Mapping[str, Any] = {"dict": dict, "tuple": tuple, "list": list, "Tensor": Tensor}


def form_from(state: Mapping[str, Any], known: Callable[[str], Any]) -> Form:
    """The form with this `state`.

    Args:
        state: a result of `Form.state`.
        known: finds the class of a named tuple by its name.
    """
    kind = _KINDS.get(state["kind"]) or known(state["kind"])
    return Form(kind, tuple(state["names"]), tuple(form_from(part, known) for part in state["parts"]))


class Tree:
    """A batch of leaves in some form.

    Args:
        form: how the leaves are joined.
        leaves: `[*batch, *item]` under each key.
        ndim: number of batch dimensions.
    """

    device = None

    def __init__(self, form: Form, leaves: Mapping[Key, Tensor], ndim: int) -> None:
        self.form, self.leaves, self.ndim = form, dict(leaves), ndim

    @property
    def shape(self) -> torch.Size:
        """The dimensions of the batch."""
        return next(iter(self.leaves.values())).shape[: self.ndim]

    def joined(self) -> Any:
        """The data from which this was made."""
        return self.form.joined(self.leaves)

    def as_tensordict(self) -> TensorDict:
        """The same as a TensorDict.

        Raises:
            SpecMismatch: it has parts other than dicts.
        """
        if not self.form.is_of_dicts:
            raise SpecMismatch(
                f"replay buffer: expected a TensorDict, or dicts of tensors that make one, got {self.form}; a ReplayBuffer "
                "holds data of this form"
            )
        return make_tensordict(nested(self.leaves), self.shape)

    def unsqueeze(self, dim: int) -> Tree:
        """Add a batch dimension."""
        return self.each(lambda leaf: leaf.unsqueeze(dim), self.ndim + 1)

    def flatten(self, start: int, end: int) -> Tree:
        """The same with one batch dimension instead of several."""
        return self.each(lambda leaf: leaf.flatten(start, end), self.ndim - (end - start))

    def reshape(self, *shape: int) -> Tree:
        """Reshape the batch dimensions."""
        return self.each(lambda leaf: leaf.reshape((*shape, *leaf.shape[self.ndim :])), len(shape))

    def permute(self, order: Sequence[int]) -> Tree:
        """Permute the batch dimensions."""
        return self.each(lambda leaf: leaf.permute((*order, *range(self.ndim, leaf.ndim))), self.ndim)

    def __getitem__(self, index: Any) -> Tree:
        """The tree at any batch index that a TensorDict accepts."""
        part: Any = make_tensordict(nested(self.leaves), self.shape)[index]
        return Tree(self.form, {key: part.get(key) for key in self.leaves}, part.ndim)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        """The items, each in this form."""
        rows = zip(*(leaf.unbind(0) for leaf in self.leaves.values()), strict=True)
        return (self.form.joined(dict(zip(self.leaves, row, strict=True))) for row in rows)

    def each(self, change: Callable[[Tensor], Tensor], ndim: int) -> Tree:
        """The same form with changed leaves and this number of batch dimensions."""
        return Tree(self.form, {key: change(leaf) for key, leaf in self.leaves.items()}, ndim)


# ---------------------------------------------------------------------- taking apart


def is_container(data: Any) -> bool:
    """Whether data are a dict, a tuple or a list."""
    return isinstance(data, dict | tuple | list)


def holds_tensors_only(data: Any) -> bool:
    """Whether data are a dict, a tuple or a list that contains only tensors and arrays, and at least one."""
    if not is_container(data):
        return False
    values = list(_parts_of(data).values())
    return bool(values) and all(isinstance(value, Tensor | np.ndarray) or holds_tensors_only(value) for value in values)


def tree_of(data: Any, ndim: int) -> Tree:
    """Split dicts, tuples and lists of tensors, arrays and numbers into leaves.

    Args:
        data: a dict, tuple or list.
        ndim: number of batch dimensions of each tensor.

    Raises:
        SpecMismatch: other contents, no contents, invalid names, or different batch shapes.
    """
    leaves: dict[Key, Tensor] = {}
    form = _apart(data, (), leaves)
    if not leaves:
        raise SpecMismatch(f"replay buffer: expected one tensor at least in a {type(data).__name__}, found none: {data!r:.100}")
    first = next(iter(leaves))
    batch = leaves[first].shape[:ndim]
    for key, leaf in leaves.items():
        if leaf.ndim < ndim:
            raise SpecMismatch(
                f"replay buffer: {plain(key)!r}: expected at least {ndim} dimensions for the batch, found {list(leaf.shape)}; "
                f"nothing was written. {ONE_BATCH}"
            )
        if leaf.shape[:ndim] != batch:
            raise SpecMismatch(
                f"replay buffer: {plain(key)!r}: expected to begin with {list(batch)}, as {plain(first)!r} does, found "
                f"{list(leaf.shape)}; nothing was written. {ONE_BATCH}"
            )
    return Tree(form, leaves, ndim)


def _apart(data: Any, path: Key, leaves: dict[Key, Tensor]) -> Form:
    if not is_container(data):
        leaves[path] = as_leaf(data, path)
        return LEAF
    parts = _parts_of(data)
    _check_names(parts, path)
    kind = dict if isinstance(data, dict) else type(data) if is_named(type(data)) else list if isinstance(data, list) else tuple
    forms = tuple(_apart(value, (*path, str(name)), leaves) for name, value in parts.items())
    return Form(kind, tuple(parts), forms)


def _parts_of(data: Any) -> dict[Any, Any]:
    return data if isinstance(data, dict) else dict(enumerate(data))


def _check_names(parts: Mapping[Any, Any], path: Key) -> None:
    where = f"under {plain(path)!r}" if path else "of a dict"
    for name in parts:
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise SpecMismatch(f"replay buffer: the names {where}: expected strings or integers, found {name!r}")
    if len(set(map(str, parts))) < len(parts):
        raise SpecMismatch(f"replay buffer: the names {where}: expected no two that are written alike, found {list(parts)}")


def dense(value: Tensor, path: Key = ()) -> Tensor:
    """The tensor, detached from autograd.

    Raises:
        SpecMismatch: its numbers cannot be copied into a dense tensor.
    """
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        where = f"{plain(path)!r}: " if path else ""
        raise SpecMismatch(f"replay buffer: {where}expected {NUMBERS}, found {unreadable_kind(value)}; nothing was written")
    return value.detach() if value.requires_grad else value


def as_leaf(value: Any, path: Key = ()) -> Tensor:
    """A tensor, array or number as a tensor, detached from autograd.

    Raises:
        SpecMismatch: anything else, or an array of a dtype that torch lacks.
    """
    where = f"{plain(path)!r}: " if path else ""
    if isinstance(value, Tensor):
        return dense(value, path)
    if not isinstance(value, np.ndarray | Numbers):
        hint = ""
        if isinstance(value, TensorDictBase) or is_tensorclass(value):
            hint = "; write one TensorDict with all entries, or several in a list"
        raise SpecMismatch(
            f"replay buffer: {where}expected dense tensors, arrays or numbers, found {type(value).__name__}: {value!r:.100}; "
            f"nothing was written{hint}"
        )
    if not isinstance(value, np.ndarray | np.generic):
        return torch.tensor(value)
    array = np.asarray(value)
    array = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable or min(array.strides, default=0) < 0)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise SpecMismatch(
            f"replay buffer: {where}expected an array of numbers, found {array.dtype} {list(array.shape)}; nothing was written"
        ) from error


# ---------------------------------------------------------------------- classes


def is_named(kind: Any) -> bool:
    """Whether a class is a named tuple."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def is_same_class(one: Any, other: Any) -> bool:
    """Whether two classes are the same, or copies of one, since local classes are copied into other processes."""
    return one is other or (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)
